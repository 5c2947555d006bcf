// The signatures of the ops, as TensorFlow's registry holds them, and what
// their shape functions say. Nothing is executed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/public/version.h"

namespace tf_hvd {
namespace {

namespace tf = ::tensorflow;
using ::tensorflow::shape_inference::InferenceContext;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const tf::OpRegistrationData& Registered(const std::string& op) {
  const tf::OpRegistrationData* data = nullptr;
  TF_CHECK_OK(tf::OpRegistry::Global()->LookUp(op, &data));
  return *data;
}

// "name: default" of each attribute, in order; no default: "name".
std::vector<std::string> Attributes(const std::string& op) {
  std::vector<std::string> result;
  for (const auto& attr : Registered(op).op_def.attr()) {
    result.push_back(attr.name() +
                     (attr.has_default_value()
                          ? ": " + tf::SummarizeAttrValue(attr.default_value())
                          : ""));
  }
  return result;
}

// The shapes of the outputs, as text; "?" is an unknown rank or dimension.
std::vector<std::string> OutputShapes(
    const std::string& op, const std::vector<tf::PartialTensorShape>& inputs) {
  const tf::OpRegistrationData& data = Registered(op);
  tf::NodeDef node;
  node.set_op(op);
  (*node.mutable_attr())["T"].set_type(tf::DT_FLOAT);
  (*node.mutable_attr())["num_tensors"].set_i(inputs.size());
  InferenceContext context(TF_GRAPH_DEF_VERSION, tf::AttrSlice(node),
                           data.op_def, inputs, {}, {}, {});
  TF_CHECK_OK(context.construction_status());
  TF_CHECK_OK(context.Run(data.shape_inference_fn));
  std::vector<std::string> result;
  for (int i = 0; i < context.num_outputs(); ++i) {
    result.push_back(context.DebugString(context.output(i)));
  }
  return result;
}

const char* const kCollectives[] = {"HorovodAllreduce",
                                    "HorovodGroupedAllreduce",
                                    "HorovodAllgather", "HorovodBroadcast"};
const char* const kTopology[] = {"HorovodSize", "HorovodRank",
                                 "HorovodLocalRank", "HorovodLocalSize"};

TEST(SignaturesTest, AttributesAreHorovodsAndOursHaveDefaults) {
  EXPECT_THAT(Attributes("HorovodAllreduce"),
              ElementsAre("T", "reduce_op", "prescale_factor",
                          "postscale_factor", "ignore_name_scope: false",
                          "process_set_id: 0", "wire_name: \"\""));
  EXPECT_THAT(
      Attributes("HorovodGroupedAllreduce"),
      ElementsAre("T", "reduce_op", "prescale_factor", "postscale_factor",
                  "ignore_name_scope: false", "process_set_id: 0",
                  "num_tensors", "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodAllgather"),
              ElementsAre("T", "ignore_name_scope: false", "process_set_id: 0",
                          "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodBroadcast"),
              ElementsAre("T", "root_rank", "ignore_name_scope: false",
                          "process_set_id: 0", "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodSize"), ElementsAre("process_set_id: 0"));
  EXPECT_THAT(Attributes("HorovodRank"), IsEmpty());
  EXPECT_THAT(Attributes("HorovodLocalRank"), IsEmpty());
  EXPECT_THAT(Attributes("HorovodLocalSize"), IsEmpty());
}

TEST(SignaturesTest, InputsAndOutputsHaveHorovodsNames) {
  const std::vector<std::vector<std::string>> expected = {
      {"HorovodAllreduce", "tensor", "sum"},
      {"HorovodGroupedAllreduce", "tensors", "sum"},
      {"HorovodAllgather", "tensor", "output"},
      {"HorovodBroadcast", "tensor", "output"},
      {"HorovodSize", "", "size"},
      {"HorovodRank", "", "rank"},
      {"HorovodLocalRank", "", "local_rank"},
      {"HorovodLocalSize", "", "local_size"},
  };
  for (const auto& row : expected) {
    const tf::OpDef& def = Registered(row[0]).op_def;
    EXPECT_EQ(def.input_arg_size(), row[1].empty() ? 0 : 1) << row[0];
    if (!row[1].empty()) {
      EXPECT_EQ(def.input_arg(0).name(), row[1]) << row[0];
    }
    ASSERT_EQ(def.output_arg_size(), 1) << row[0];
    EXPECT_EQ(def.output_arg(0).name(), row[2]) << row[0];
  }
}

TEST(SignaturesTest, CollectivesTakeTheTypesOfTheTable) {
  const std::set<int> expected = {tf::DT_UINT8, tf::DT_INT8,    tf::DT_UINT16,
                                  tf::DT_INT16, tf::DT_INT32,   tf::DT_INT64,
                                  tf::DT_HALF,  tf::DT_FLOAT,   tf::DT_DOUBLE,
                                  tf::DT_BOOL,  tf::DT_BFLOAT16};
  for (const char* op : kCollectives) {
    const auto& types =
        Registered(op).op_def.attr(0).allowed_values().list().type();
    EXPECT_EQ(std::set<int>(types.begin(), types.end()), expected) << op;
  }
}

TEST(SignaturesTest, AllAreStatefulAndCollectivesAreCommunication) {
  for (const char* op : kCollectives) {
    EXPECT_TRUE(Registered(op).op_def.is_stateful()) << op;
    EXPECT_TRUE(Registered(op).op_def.is_distributed_communication()) << op;
  }
  for (const char* op : kTopology) {
    EXPECT_TRUE(Registered(op).op_def.is_stateful()) << op;
  }
}

TEST(SignaturesTest, EveryArgumentIsDocumented) {
  for (const auto& group : {kCollectives, kTopology}) {
    for (int i = 0; i < 4; ++i) {
      const tf::OpDef& def = Registered(group[i]).op_def;
      EXPECT_NE(def.summary(), "") << group[i];
      for (const auto& arg : def.input_arg()) EXPECT_NE(arg.description(), "");
      for (const auto& arg : def.output_arg()) EXPECT_NE(arg.description(), "");
      for (const auto& attr : def.attr()) {
        // TensorFlow describes T itself, from the inputs that have that type.
        if (attr.name() != "T") {
          EXPECT_NE(attr.description(), "") << attr.name();
        }
      }
    }
  }
}

TEST(ShapesTest, AllreduceAndBroadcastKeepTheShape) {
  for (const char* op : {"HorovodAllreduce", "HorovodBroadcast"}) {
    EXPECT_THAT(OutputShapes(op, {{3, -1}}), ElementsAre("[3,?]"));
    EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape({})}),
                ElementsAre("[]"));
    EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape()}), ElementsAre("?"));
  }
}

TEST(ShapesTest, GroupedAllreduceKeepsEachShape) {
  EXPECT_THAT(OutputShapes("HorovodGroupedAllreduce",
                           {{3}, tf::PartialTensorShape(), {0, 5}}),
              ElementsAre("[3]", "?", "[0,5]"));
}

TEST(ShapesTest, AllgatherForgetsTheFirstDimension) {
  const char* const op = "HorovodAllgather";
  EXPECT_THAT(OutputShapes(op, {{3, 4}}), ElementsAre("[?,4]"));
  EXPECT_THAT(OutputShapes(op, {{-1, -1, 2}}), ElementsAre("[?,?,2]"));
  EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape()}), ElementsAre("?"));
  // A scalar is refused when it runs, on all ranks.
  EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape({})}), ElementsAre("?"));
}

TEST(ShapesTest, TopologyIsScalar) {
  for (const char* op : kTopology) {
    EXPECT_THAT(OutputShapes(op, {}), ElementsAre("[]")) << op;
  }
}

}  // namespace
}  // namespace tf_hvd
