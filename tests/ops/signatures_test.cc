// The signatures of the ops, as TensorFlow's registry holds them, and what
// their shape functions say. Nothing is executed.
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

// The step that a caller says it is at is an input more: a scalar, of which the
// results' shapes say nothing.
TEST(ShapesTest, TheStepIsNoTensorOfTheGroup) {
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

// They return tensors that other ranks had a part in, and have a T.
const std::vector<std::string> kCollectives = {
    "HorovodAllreduce",     "HorovodGroupedAllreduce",
    "HorovodAllgather",     "HorovodGroupedAllgather",
    "HorovodReducescatter", "HorovodGroupedReducescatter",
    "HorovodBroadcast",     "HorovodBroadcastInplace",
    "HorovodAlltoall"};
// They are called for their effect.
const std::vector<std::string> kEffects = {"HorovodBroadcastInplaceResource",
                                           "HorovodBarrier", "HorovodJoin"};
const std::vector<std::string> kTopology = {"HorovodSize",
                                            "HorovodRank",
                                            "HorovodLocalRank",
                                            "HorovodLocalSize",
                                            "HorovodCrossRank",
                                            "HorovodCrossSize",
                                            "HorovodProcessSetIncluded"};
// It computes, on this rank alone.
const std::vector<std::string> kLocal = {"HorovodFingerprints"};
// It speaks.
const std::vector<std::string> kVerdicts = {"HorovodVerdict"};
// They read or change what this process knows of variables.
const std::vector<std::string> kSources = {
    "HorovodBroadcastNumber", "HorovodIdentify", "HorovodCountReduction"};

std::vector<std::string> Together(
    const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> all;
  for (const auto& list : lists)
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

TEST(SignaturesTest, AttributesOfReductionsAreHorovodsAndOursHaveDefaults) {
  EXPECT_THAT(
      Attributes("HorovodAllreduce"),
      ElementsAre("T", "reduce_op", "prescale_factor", "postscale_factor",
                  "ignore_name_scope: false", "process_set_id: 0",
                  "wire_name: \"\"", "compression: \"\"", "exact_factors: []",
                  "wire_dtype: \"\""));
  EXPECT_THAT(
      Attributes("HorovodGroupedAllreduce"),
      ElementsAre("T", "reduce_op", "prescale_factor", "postscale_factor",
                  "ignore_name_scope: false", "process_set_id: 0",
                  "num_tensors", "wire_name: \"\"", "compression: \"\"",
                  "exact_factors: []", "wire_dtype: \"\"", "member_names: []",
                  "stamp_count: 0"));
  EXPECT_THAT(
      Attributes("HorovodReducescatter"),
      ElementsAre("T", "reduce_op", "ignore_name_scope: false",
                  "prescale_factor", "postscale_factor", "process_set_id: 0",
                  "wire_name: \"\"", "compression: \"\"", "exact_factors: []",
                  "wire_dtype: \"\""));
  EXPECT_THAT(
      Attributes("HorovodGroupedReducescatter"),
      ElementsAre("T", "reduce_op", "ignore_name_scope: false",
                  "prescale_factor", "postscale_factor", "process_set_id: 0",
                  "num_tensors", "wire_name: \"\"", "compression: \"\"",
                  "exact_factors: []", "wire_dtype: \"\"", "member_names: []"));
}

TEST(SignaturesTest, AttributesOfTheOthersAreHorovodsAndOursHaveDefaults) {
  for (const char* op : {"HorovodAllgather", "HorovodAlltoall"}) {
    EXPECT_THAT(Attributes(op),
                ElementsAre("T", "ignore_name_scope: false",
                            "process_set_id: 0", "wire_name: \"\""));
  }
  EXPECT_THAT(Attributes("HorovodGroupedAllgather"),
              ElementsAre("T", "ignore_name_scope: false", "process_set_id: 0",
                          "num_tensors", "wire_name: \"\"", "member_names: []",
                          "stamp_count: 0"));
  EXPECT_THAT(Attributes("HorovodBroadcast"),
              ElementsAre("T", "root_rank", "ignore_name_scope: false",
                          "process_set_id: 0", "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodBroadcastInplace"),
              ElementsAre("T", "root_rank", "process_set_id: 0",
                          "num_variables", "variable_names",
                          "ignore_name_scope: false", "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodBroadcastInplaceResource"),
              ElementsAre("root_rank", "process_set_id: 0", "num_variables",
                          "variable_names", "ignore_name_scope: false",
                          "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodBarrier"),
              ElementsAre("ignore_name_scope: false", "process_set_id: 0",
                          "wire_name: \"\""));
  EXPECT_THAT(Attributes("HorovodJoin"), ElementsAre("process_set_id: 0"));
}

TEST(SignaturesTest, TopologyHasAProcessSetWhereItMatters) {
  for (const std::string& op : kTopology) {
    if (op == "HorovodSize" || op == "HorovodProcessSetIncluded") {
      EXPECT_THAT(Attributes(op), ElementsAre("process_set_id: 0"));
    } else {
      EXPECT_THAT(Attributes(op), IsEmpty()) << op;
    }
  }
}

// "name" of each argument, in order; "name*" if it is a list, "name&" if it is
// a reference.
std::vector<std::string> Names(
    const tf::protobuf::RepeatedPtrField<tf::OpDef::ArgDef>& arguments) {
  std::vector<std::string> names;
  for (const auto& argument : arguments) {
    names.push_back(argument.name() +
                    (argument.number_attr().empty() ? "" : "*") +
                    (argument.is_ref() ? "&" : ""));
  }
  return names;
}

TEST(SignaturesTest, InputsAndOutputsHaveHorovodsNames) {
  using List = std::vector<std::string>;
  struct Row {
    std::string op;
    List inputs;
    List outputs;
  };
  const Row expected[] = {
      {"HorovodAllreduce", {"tensor"}, {"sum"}},
      {"HorovodGroupedAllreduce", {"tensors*", "stamp*"}, {"sum*"}},
      {"HorovodAllgather", {"tensor"}, {"output"}},
      {"HorovodGroupedAllgather", {"tensors*", "stamp*"}, {"outputs*"}},
      {"HorovodReducescatter", {"tensor"}, {"output"}},
      {"HorovodGroupedReducescatter", {"tensors*"}, {"outputs*"}},
      {"HorovodBroadcast", {"tensor"}, {"output"}},
      {"HorovodBroadcastInplace", {"tensor_refs*&"}, {"output_refs*&"}},
      {"HorovodBroadcastInplaceResource", {"resources*"}, {}},
      {"HorovodAlltoall", {"tensor", "splits"}, {"output", "received_splits"}},
      {"HorovodBarrier", {}, {}},
      {"HorovodJoin", {}, {"last_rank"}},
      {"HorovodSize", {}, {"size"}},
      {"HorovodRank", {}, {"rank"}},
      {"HorovodLocalRank", {}, {"local_rank"}},
      {"HorovodLocalSize", {}, {"local_size"}},
      {"HorovodCrossRank", {}, {"cross_rank"}},
      {"HorovodCrossSize", {}, {"cross_size"}},
      {"HorovodProcessSetIncluded", {}, {"included"}},
      {"HorovodFingerprints", {"wanted", "values"}, {"fingerprints"}},
      {"HorovodVerdict", {"wrong"}, {"passed"}},
      {"HorovodBroadcastNumber", {"list"}, {"number"}},
      {"HorovodIdentify", {"list", "number"}, {}},
      {"HorovodCountReduction", {"variables*"}, {"count"}},
  };
  EXPECT_EQ(std::size(expected), Together({kCollectives, kEffects, kTopology,
                                           kLocal, kVerdicts, kSources})
                                     .size());
  for (const Row& row : expected) {
    const tf::OpDef& def = Registered(row.op).op_def;
    EXPECT_EQ(Names(def.input_arg()), row.inputs) << row.op;
    EXPECT_EQ(Names(def.output_arg()), row.outputs) << row.op;
  }
}

// TensorFlow would refuse the others on one rank alone; the kernel refuses them
// on all ranks (tests/python/parallel/verdicts_test.py).
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

TEST(SignaturesTest, WhatIsLocalIsAFunctionOfItsInputs) {
  for (const std::string& op : kLocal) {
    EXPECT_FALSE(Registered(op).op_def.is_stateful()) << op;
    EXPECT_FALSE(Registered(op).op_def.is_distributed_communication()) << op;
  }
}

// TensorFlow would fail the call on this rank without telling the others.
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
      // TensorFlow describes T itself, from the inputs that have that type.
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

TEST(ShapesTest, GatheredAndScatteredForgetTheFirstDimension) {
  for (const char* op : {"HorovodAllgather", "HorovodReducescatter"}) {
    EXPECT_THAT(OutputShapes(op, {{3, 4}}), ElementsAre("[?,4]"));
    EXPECT_THAT(OutputShapes(op, {{-1, -1, 2}}), ElementsAre("[?,?,2]"));
    EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape()}), ElementsAre("?"));
    // A scalar is refused when it runs, on all ranks.
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

TEST(ShapesTest, AlltoallReceivesAsManySplitsAsThereAreRanks) {
  const char* const op = "HorovodAlltoall";
  EXPECT_THAT(OutputShapes(op, {{3, 4}, {2}}), ElementsAre("[?,4]", "[2]"));
  EXPECT_THAT(OutputShapes(op, {{3}, {-1}}), ElementsAre("[?]", "[?]"));
  // Empty splits stand for even ones: they do not say how many ranks there are.
  EXPECT_THAT(OutputShapes(op, {{3}, {0}}), ElementsAre("[?]", "[?]"));
  EXPECT_THAT(OutputShapes(op, {{3}, tf::PartialTensorShape()}),
              ElementsAre("[?]", "[?]"));
  // Refused when it runs, on all ranks.
  EXPECT_THAT(OutputShapes(op, {tf::PartialTensorShape({}), {2, 2}}),
              ElementsAre("?", "[?]"));
}

TEST(ShapesTest, InPlaceReferencesKeepTheirShapes) {
  EXPECT_THAT(OutputShapes("HorovodBroadcastInplace",
                           {{3}, tf::PartialTensorShape(), {0, 5}}),
              ElementsAre("[3]", "?", "[0,5]"));
}

TEST(ShapesTest, WhatReturnsNothingHasNoShapes) {
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
