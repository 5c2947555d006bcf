// Random collectives of tensors on GPUs: each rank's input, and the expected
// results, computed with buffer_ops on the host. Values are small whole
// numbers, so that every sum is exact in every type.
#ifndef TF_HVD_TESTS_GPU_GPU_PROGRAM_H_
#define TF_HVD_TESTS_GPU_GPU_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "compute/buffer_ops.h"
#include "tests/gpu/gpu_ranks.h"

namespace tf_hvd {

// A collective that all ranks agree on, and each rank's call.
class GpuProgram {
 public:
  GpuProgram(uint64_t seed, int ranks) : random_(seed), ranks_(ranks) {
    sets_.push_back(Range(0, ranks));
    if (ranks > 2) sets_.push_back(Range(1, ranks));
    if (ranks > 1) sets_.push_back({ranks - 1});
  }

  // By rank of the world; empty for ranks that do not take part.
  std::map<int, GpuRank::Call> Next() {
    set_ = Draw(sets_.size());
    members_ = sets_[set_];
    numbers_[set_] += 1;
    tensors_ = 1 + Draw(3);
    constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kAllgather,
                                 OpKind::kBroadcast, OpKind::kAlltoall,
                                 OpKind::kReducescatter};
    kind_ = kKinds[Draw(5)];
    what_ = std::string(NameOf(kind_)) + " " + std::to_string(++count_);
    calls_.clear();
    for (const int rank : members_) {
      GpuRank::Call& call = calls_[rank];
      call.what = what_;
      call.spec.kind = kind_;
      call.spec.ranks = MembersOf(members_);
      call.spec.set = static_cast<int32_t>(set_);
      call.spec.number = numbers_[set_] - 1;
    }
    Fill();
    for (const int rank : members_) {
      GpuRank::Call& call = calls_[rank];
      const DType dtype = call.spec.reduce.dtype;
      const bool half = dtype == DType::kFloat16 || dtype == DType::kBfloat16;
      // Compression on only some ranks: each rank decides for itself.
      if (Reduces(kind_) && half && !call.joined && Draw(2) == 0) Widen(&call);
    }
    return std::move(calls_);
  }

 private:
  void Fill() {
    switch (kind_) {
      case OpKind::kAllreduce:
        Allreduce();
        break;
      case OpKind::kBroadcast:
        Broadcast();
        break;
      case OpKind::kAllgather:
        Allgather();
        break;
      case OpKind::kAlltoall:
        Alltoall();
        break;
      default:
        Reducescatter();
    }
  }

  // The same call with float32 tensors.
  static void Widen(GpuRank::Call* call) {
    const DType dtype = call->spec.reduce.dtype;
    const auto widen = [dtype](std::vector<char>* tensor) {
      std::vector<char> wide(2 * tensor->size());
      LoadAccumulator(dtype, wide.data(), tensor->data(),
                      static_cast<int64_t>(tensor->size() / 2), 1.0);
      *tensor = std::move(wide);
    };
    call->spec.stored = DType::kFloat32;
    for (auto& tensor : call->inputs) widen(&tensor);
    for (auto& tensor : call->expected) widen(&tensor);
    for (size_t& bytes : call->outputs) bytes *= 2;
  }

  size_t Draw(size_t below) { return random_() % below; }

  static std::vector<int> Range(int begin, int end) {
    std::vector<int> ranks;
    for (int rank = begin; rank < end; ++rank) ranks.push_back(rank);
    return ranks;
  }

  // Usually a few, sometimes more than fit in the staging memory.
  size_t DrawCount() { return Draw(8) == 0 ? Draw(3000) : Draw(40); }

  ReduceOptions DrawOptions() {
    for (;;) {
      ReduceOptions options;
      options.dtype = static_cast<DType>(Draw(kDTypeCount));
      constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage,
                                   ReduceOp::kMin, ReduceOp::kMax,
                                   ReduceOp::kProduct};
      options.op = kOps[Draw(5)];
      constexpr double kFactors[] = {1, 1, 2, 0.5};
      options.prescale = kFactors[Draw(4)];
      options.postscale = kFactors[Draw(4)];
      const bool average_of_bool =
          options.dtype == DType::kBool && options.op == ReduceOp::kAverage;
      if (IsReducible(options.dtype, options.op) && !average_of_bool) {
        return options;
      }
    }
  }

  // Numbers from 0 to 3, as bytes of the type.
  std::vector<char> DrawNumbers(DType dtype, size_t count) {
    std::vector<uint8_t> small(count);
    for (uint8_t& value : small) value = static_cast<uint8_t>(Draw(4));
    std::vector<char> bytes(count * SizeOf(dtype));
    for (size_t i = 0; i < count; ++i) {
      char* const at = bytes.data() + i * SizeOf(dtype);
      if (dtype == DType::kFloat32 || dtype == DType::kComplex64) {
        const float value = small[i];
        std::memcpy(at, &value, sizeof(value));
      } else if (dtype == DType::kFloat64 || dtype == DType::kComplex128) {
        const double value = small[i];
        std::memcpy(at, &value, sizeof(value));
      } else if (dtype == DType::kFloat16) {
        const uint16_t value = FloatToHalf(small[i]);
        std::memcpy(at, &value, sizeof(value));
      } else if (dtype == DType::kBfloat16) {
        const uint16_t value = FloatToBfloat(small[i]);
        std::memcpy(at, &value, sizeof(value));
      } else {
        *at = static_cast<char>(small[i]);
      }
    }
    return bytes;
  }

  std::vector<char> DrawBytes(size_t count) {
    std::vector<char> bytes(count);
    for (char& byte : bytes) byte = static_cast<char>(Draw(256));
    return bytes;
  }

  // For tensor `t`: part [begin, begin + count) of all members' inputs.
  std::vector<char> Reduced(const ReduceOptions& options, size_t t,
                            size_t begin, size_t count) {
    std::vector<const void*> inputs;
    for (const int rank : members_) {
      const GpuRank::Call& call = calls_[rank];
      inputs.push_back(call.joined ? nullptr
                                   : call.inputs[t].data() +
                                         begin * SizeOf(options.dtype));
    }
    std::vector<char> result(count * SizeOf(options.dtype));
    ReduceInputs(AverageAsSum(options, members_.size()), inputs,
                 static_cast<int64_t>(count), result.data());
    return result;
  }

  void Allreduce() {
    const ReduceOptions options = DrawOptions();
    std::vector<size_t> counts(tensors_);
    for (size_t& count : counts) count = DrawCount();
    const bool in_place = Draw(2) == 0;
    const size_t joins = members_.size() > 1 ? Draw(4 * members_.size()) : 99;
    for (size_t place = 0; place < members_.size(); ++place) {
      GpuRank::Call& call = calls_[members_[place]];
      call.spec.reduce = options;
      call.in_place = in_place;
      call.joined = place == joins;
      for (size_t t = 0; t < counts.size() && !call.joined; ++t) {
        call.inputs.push_back(DrawNumbers(options.dtype, counts[t]));
        call.outputs.push_back(call.inputs.back().size());
      }
      call.point = [counts](const auto& inputs, const auto& outputs,
                            OperationSpec* spec) {
        for (size_t t = 0; t < counts.size(); ++t) {
          const auto count = static_cast<int64_t>(counts[t]);
          spec->spans.push_back({inputs.empty() ? nullptr : inputs[t],
                                 outputs.empty() ? nullptr : outputs[t],
                                 count});
        }
      };
    }
    for (const int rank : members_) {
      for (size_t t = 0; t < counts.size(); ++t) {
        calls_[rank].expected.push_back(Reduced(options, t, 0, counts[t]));
      }
    }
  }

  void Broadcast() {
    const size_t root = Draw(members_.size());
    Tensors tensors(tensors_);
    for (auto& tensor : tensors) tensor = DrawBytes(DrawCount());
    for (size_t place = 0; place < members_.size(); ++place) {
      GpuRank::Call& call = calls_[members_[place]];
      call.spec.root = root;
      for (const auto& tensor : tensors) call.outputs.push_back(tensor.size());
      if (place == root) call.inputs = tensors;
      call.expected = tensors;
      call.point = [tensors](const auto& inputs, const auto& outputs,
                             OperationSpec* spec) {
        for (size_t t = 0; t < tensors.size(); ++t) {
          spec->spans.push_back({inputs.empty() ? nullptr : inputs[t],
                                 outputs[t],
                                 static_cast<int64_t>(tensors[t].size())});
        }
      };
    }
  }

  void Allgather() {
    const bool alike = Draw(2) == 0;
    Tensors all(tensors_);
    std::vector<std::vector<size_t>> bytes(tensors_);  // by tensor, place
    for (size_t t = 0; t < tensors_; ++t) {
      const size_t same = DrawCount();
      for (const int rank : members_) {
        auto mine = DrawBytes(alike ? same : DrawCount());
        bytes[t].push_back(mine.size());
        all[t].insert(all[t].end(), mine.begin(), mine.end());
        calls_[rank].inputs.push_back(std::move(mine));
      }
    }
    for (const int rank : members_) {
      GpuRank::Call& call = calls_[rank];
      for (const auto& tensor : all) call.outputs.push_back(tensor.size());
      call.expected = all;
      call.point = [bytes](const auto& inputs, const auto& outputs,
                           OperationSpec* spec) {
        std::vector<char*> at = outputs;
        for (size_t place = 0; place < bytes[0].size(); ++place) {
          for (size_t t = 0; t < bytes.size(); ++t) {
            const size_t count = bytes[t][place];
            spec->spans.push_back(
                {inputs[t], at[t], static_cast<int64_t>(count)});
            at[t] += count;
          }
        }
      };
    }
  }

  void Alltoall() {
    const size_t ranks = members_.size();
    std::vector<std::vector<std::vector<char>>> sent(ranks);
    for (auto& row : sent) {
      for (size_t to = 0; to < ranks; ++to)
        row.push_back(DrawBytes(DrawCount()));
    }
    for (size_t place = 0; place < ranks; ++place) {
      GpuRank::Call& call = calls_[members_[place]];
      call.inputs.resize(1);
      call.expected.resize(1);
      for (size_t other = 0; other < ranks; ++other) {
        const auto& out = sent[place][other];
        const auto& in = sent[other][place];
        call.spec.send.push_back(static_cast<int64_t>(out.size()));
        call.spec.receive.push_back(static_cast<int64_t>(in.size()));
        call.inputs[0].insert(call.inputs[0].end(), out.begin(), out.end());
        call.expected[0].insert(call.expected[0].end(), in.begin(), in.end());
      }
      call.outputs = {call.expected[0].size()};
      call.point = [](const auto& inputs, const auto& outputs,
                      OperationSpec* spec) {
        spec->input = inputs[0];
        spec->output = outputs[0];
      };
    }
  }

  void Reducescatter() {
    const ReduceOptions options = DrawOptions();
    const size_t ranks = members_.size();
    std::vector<std::vector<size_t>> counts(tensors_);  // by tensor, place
    for (auto& of_tensor : counts) {
      const size_t rows = DrawCount();
      for (size_t place = 0; place < ranks; ++place) {
        of_tensor.push_back(rows / ranks + (place < rows % ranks ? 1 : 0));
      }
    }
    const size_t element = SizeOf(options.dtype);
    for (size_t place = 0; place < ranks; ++place) {
      GpuRank::Call& call = calls_[members_[place]];
      call.spec.reduce = options;
      for (const auto& of_tensor : counts) {
        size_t all = 0;
        for (const size_t count : of_tensor) all += count;
        call.inputs.push_back(DrawNumbers(options.dtype, all));
        call.outputs.push_back(of_tensor[place] * element);
      }
      call.point = [counts](const auto& inputs, const auto& outputs,
                            OperationSpec* spec) {
        const size_t stored = SizeOf(StoredType(*spec));
        std::vector<const char*> at = inputs;
        for (size_t p = 0; p < counts[0].size(); ++p) {
          for (size_t t = 0; t < counts.size(); ++t) {
            const size_t count = counts[t][p];
            spec->spans.push_back(
                {at[t], outputs[t], static_cast<int64_t>(count)});
            at[t] += count * stored;
          }
        }
      };
    }
    for (size_t place = 0; place < ranks; ++place) {
      for (size_t t = 0; t < tensors_; ++t) {
        size_t begin = 0;
        for (size_t p = 0; p < place; ++p) begin += counts[t][p];
        calls_[members_[place]].expected.push_back(
            Reduced(options, t, begin, counts[t][place]));
      }
    }
  }

  std::mt19937_64 random_;
  const int ranks_;
  std::vector<std::vector<int>> sets_;
  std::map<size_t, uint64_t> numbers_;
  int count_ = 0;
  // State of the collective that is being made.
  size_t set_ = 0;
  std::vector<int> members_;
  size_t tensors_ = 1;
  OpKind kind_ = OpKind::kAllreduce;
  std::string what_;
  std::map<int, GpuRank::Call> calls_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_GPU_PROGRAM_H_
