// The ops' signatures in TensorFlow's registry, and the results of their shape
// functions. Nothing is executed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
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

// The shapes of the outputs as text; "?" is an unknown rank or dimension.
std::vector<std::string> OutputShapes(
    const std::string& op, const std::vector<tf::PartialTensorShape>& inputs) {
  const tf::OpRegistrationData& data = Registered(op);
  tf::NodeDef node;
  node.set_op(op);
  (*node.mutable_attr())["T"].set_type(tf::DT_FLOAT);
  (*node.mutable_attr())["num_tensors"].set_i(inputs.size());
  (*node.mutable_attr())["num_variables"].set_i(inputs.size());
  (*node.mutable_attr())["stamp_count"].set_i(0);
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

// The caller's step is an additional input, a scalar, which does not affect the
// shapes of the results.
TEST(ShapesTest, TheStepIsNotAMember) {
  for (const char* op :
       {"HorovodGroupedAllreduce", "HorovodGroupedAllgather"}) {
    const tf::OpRegistrationData& data = Registered(op);
    tf::NodeDef node;
    node.set_op(op);
    (*node.mutable_attr())["T"].set_type(tf::DT_FLOAT);
    (*node.mutable_attr())["num_tensors"].set_i(1);
    (*node.mutable_attr())["stamp_count"].set_i(1);
    InferenceContext context(TF_GRAPH_DEF_VERSION, tf::AttrSlice(node),
                             data.op_def, {{-1, 4}, tf::PartialTensorShape({})},
                             {}, {}, {});
    TF_CHECK_OK(context.construction_status());
    TF_CHECK_OK(context.Run(data.shape_inference_fn));
    ASSERT_EQ(context.num_outputs(), 1) << op;
    EXPECT_EQ(context.DebugString(context.output(0)), "[?,4]") << op;
  }
}

// These return tensors that other ranks contributed to, and have a T.
const std::vector<std::string> kCollectives = {
    "HorovodAllreduce",     "HorovodGroupedAllreduce",
    "HorovodAllgather",     "HorovodGroupedAllgather",
    "HorovodReducescatter", "HorovodGroupedReducescatter",
    "HorovodBroadcast",     "HorovodBroadcastInplace",
    "HorovodAlltoall"};
// These are called for their effect.
const std::vector<std::string> kEffects = {"HorovodBroadcastInplaceResource",
                                           "HorovodBarrier", "HorovodJoin"};
const std::vector<std::string> kTopology = {"HorovodSize",
                                            "HorovodRank",
                                            "HorovodLocalRank",
                                            "HorovodLocalSize",
                                            "HorovodCrossRank",
                                            "HorovodCrossSize",
                                            "HorovodProcessSetIncluded"};
// This one computes, only on this rank.
const std::vector<std::string> kLocal = {"HorovodFingerprints"};
// This one reports.
const std::vector<std::string> kVerdicts = {"HorovodVerdict"};
// These read or change this process's table of variables.
const std::vector<std::string> kSources = {
    "HorovodBroadcastNumber", "HorovodIdentify", "HorovodCountReduction"};

std::vector<std::string> Together(
    const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> all;
  for (const auto& list : lists)
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

// A text "Op(inputs) -> (outputs) attributes": "name*" is a list, "name&" a
// reference, "name=value" an attribute with a default.
std::string Signature(const std::string& op) {
  const tf::OpDef& def = Registered(op).op_def;
  const auto names = [](const auto& arguments) {
    std::string text;
    for (const auto& argument : arguments) {
      text += (text.empty() ? "" : " ") + argument.name() +
              (argument.number_attr().empty() ? "" : "*") +
              (argument.is_ref() ? "&" : "");
    }
    return "(" + text + ")";
  };
  std::string text =
      op + names(def.input_arg()) + " -> " + names(def.output_arg());
  for (const auto& attr : def.attr()) {
    text += " " + attr.name();
    if (attr.has_default_value()) {
      text += "=" + tf::SummarizeAttrValue(attr.default_value());
    }
  }
  return text;
}

// Names and their order are Horovod's; our additions come after them, with
// defaults.
TEST(SignaturesTest, AreHorovodsAndOursHaveDefaults) {
  const std::string reduces =
      " T reduce_op prescale_factor postscale_factor ignore_name_scope=false "
      "process_set_id=0";
  const std::string scatters =
      " T reduce_op ignore_name_scope=false prescale_factor postscale_factor "
      "process_set_id=0";
  const std::string gathers = " T ignore_name_scope=false process_set_id=0";
  const std::string wire = " wire_name=\"\"";
  const std::string narrow =
      wire + " compression=\"\" exact_factors=[] wire_dtype=\"\"";
  const std::string set = " process_set_id=0";
  const std::string expected[] = {
      "HorovodAllreduce(tensor) -> (sum)" + reduces + narrow,
      "HorovodGroupedAllreduce(tensors* stamp*) -> (sum*)" + reduces +
          " num_tensors" + narrow + " member_names=[] stamp_count=0",
      "HorovodAllgather(tensor) -> (output)" + gathers + wire,
      "HorovodGroupedAllgather(tensors* stamp*) -> (outputs*)" + gathers +
          " num_tensors" + wire + " member_names=[] stamp_count=0",
      "HorovodReducescatter(tensor) -> (output)" + scatters + narrow,
      "HorovodGroupedReducescatter(tensors*) -> (outputs*)" + scatters +
          " num_tensors" + narrow + " member_names=[]",
      "HorovodBroadcast(tensor) -> (output) T root_rank "
      "ignore_name_scope=false process_set_id=0" +
          wire,
      "HorovodBroadcastInplace(tensor_refs*&) -> (output_refs*&) T root_rank "
      "process_set_id=0 num_variables variable_names ignore_name_scope=false" +
          wire,
      "HorovodAlltoall(tensor splits) -> (output received_splits)" + gathers +
          wire,
      "HorovodBroadcastInplaceResource(resources*) -> () root_rank "
      "process_set_id=0 num_variables variable_names ignore_name_scope=false" +
          wire,
      "HorovodBarrier() -> () ignore_name_scope=false process_set_id=0" + wire,
      "HorovodJoin() -> (last_rank)" + set,
      "HorovodSize() -> (size)" + set,
      "HorovodRank() -> (rank)",
      "HorovodLocalRank() -> (local_rank)",
      "HorovodLocalSize() -> (local_size)",
      "HorovodCrossRank() -> (cross_rank)",
      "HorovodCrossSize() -> (cross_size)",
      "HorovodProcessSetIncluded() -> (included)" + set,
      "HorovodFingerprints(wanted values) -> (fingerprints) T",
      "HorovodVerdict(wrong) -> (passed) names before after fails",
      "HorovodBroadcastNumber(list) -> (number) root_rank",
      "HorovodIdentify(list number) -> ()",
      "HorovodCountReduction(variables*) -> (count) num_variables source_list" +
          set,
  };
  const auto ops = Together(
      {kCollectives, kEffects, kTopology, kLocal, kVerdicts, kSources});
  ASSERT_EQ(std::size(expected), ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    EXPECT_EQ(Signature(ops[i]), expected[i]);
  }
}

// TensorFlow would refuse the other types only on one rank; the kernel refuses
// them on all ranks (tests/python/parallel/verdicts_test.py).
TEST(SignaturesTest, CollectivesLeaveTypesToTheKernel) {
  for (const std::string& op : kCollectives) {
    const auto& type = Registered(op).op_def.attr(0);
    EXPECT_EQ(type.name(), "T") << op;
    EXPECT_EQ(type.type(), "type") << op;
    EXPECT_FALSE(type.has_allowed_values()) << op;
  }
}

TEST(SignaturesTest, AllAreStatefulAndCollectivesAreCommunication) {
  for (const std::string& op : Together({kCollectives, kEffects})) {
    EXPECT_TRUE(Registered(op).op_def.is_distributed_communication()) << op;
  }
  for (const std::string& op :
       Together({kCollectives, kEffects, kTopology, kVerdicts, kSources})) {
    EXPECT_TRUE(Registered(op).op_def.is_stateful()) << op;
  }
}

TEST(SignaturesTest, LocalOpsAreFunctionsOfTheirInputs) {
  for (const std::string& op : kLocal) {
    EXPECT_FALSE(Registered(op).op_def.is_stateful()) << op;
    EXPECT_FALSE(Registered(op).op_def.is_distributed_communication()) << op;
  }
}

// TensorFlow would fail the call on this rank without reporting it to the
// others.
TEST(SignaturesTest, UninitializedReferencesReachTheKernel) {
  EXPECT_TRUE(Registered("HorovodBroadcastInplace")
                  .op_def.allows_uninitialized_input());
}

TEST(SignaturesTest, EveryArgumentIsDocumented) {
  for (const std::string& op : Together(
           {kCollectives, kEffects, kTopology, kLocal, kVerdicts, kSources})) {
    const tf::OpDef& def = Registered(op).op_def;
    EXPECT_NE(def.summary(), "") << op;
    for (const auto& arg : def.input_arg()) {
      EXPECT_NE(arg.description(), "") << op << " " << arg.name();
    }
    for (const auto& arg : def.output_arg()) {
      EXPECT_NE(arg.description(), "") << op << " " << arg.name();
    }
    for (const auto& attr : def.attr()) {
      // TensorFlow generates the description of T from the inputs of that type.
      if (attr.name() != "T") {
        EXPECT_NE(attr.description(), "") << op << " " << attr.name();
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

TEST(ShapesTest, GatherAndScatterHaveAnUnknownFirstDimension) {
  for (const char* op : {"HorovodAllgather", "HorovodReducescatter"}) {
    EXPECT_THAT(OutputShapes(op, {{3, 4}}), ElementsAre("[?,4]"));
    EXPECT_THAT(OutputShapes(op, {{-1, -1, 2}}), ElementsAre("[?,?,2]"));
    EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape()}), ElementsAre("?"));
    // A scalar is refused at run time, on all ranks.
    EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape({})}),
                ElementsAre("?"));
  }
  for (const char* op :
       {"HorovodGroupedAllgather", "HorovodGroupedReducescatter"}) {
    EXPECT_THAT(OutputShapes(op, {{3, 4},
                                  {5},
                                  tf::PartialTensorShape(),
                                  tf::PartialTensorShape({})}),
                ElementsAre("[?,4]", "[?]", "?", "?"));
  }
}

TEST(ShapesTest, AlltoallReceivesOneSplitPerRank) {
  const char* const op = "HorovodAlltoall";
  EXPECT_THAT(OutputShapes(op, {{3, 4}, {2}}), ElementsAre("[?,4]", "[2]"));
  EXPECT_THAT(OutputShapes(op, {{3}, {-1}}), ElementsAre("[?]", "[?]"));
  // Empty splits stand for even ones: they do not tell the number of ranks.
  EXPECT_THAT(OutputShapes(op, {{3}, {0}}), ElementsAre("[?]", "[?]"));
  EXPECT_THAT(OutputShapes(op, {{3}, tf::PartialTensorShape()}),
              ElementsAre("[?]", "[?]"));
  // Refused at run time, on all ranks.
  EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape({}), {2, 2}}),
              ElementsAre("?", "[?]"));
}

TEST(ShapesTest, InPlaceReferencesKeepTheirShapes) {
  EXPECT_THAT(OutputShapes("HorovodBroadcastInplace",
                           {{3}, tf::PartialTensorShape(), {0, 5}}),
              ElementsAre("[3]", "?", "[0,5]"));
}

TEST(ShapesTest, OpsWithoutOutputsHaveNoShapes) {
  EXPECT_THAT(OutputShapes("HorovodBarrier", {}), IsEmpty());
  EXPECT_THAT(OutputShapes("HorovodBroadcastInplaceResource",
                           {tf::PartialTensorShape({})}),
              IsEmpty());
}

TEST(ShapesTest, TopologyAndJoinAreScalars) {
  for (const std::string& op : Together({kTopology, {"HorovodJoin"}})) {
    EXPECT_THAT(OutputShapes(op, {}), ElementsAre("[]")) << op;
  }
}

}  // namespace
}  // namespace tf_hvd
