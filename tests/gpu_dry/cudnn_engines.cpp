// Which engines cuDNN has for convolutions on a device that is described to it: no GPU is asked.
//
//     cudnn_engines DEVICE.json ──> a line for each question: type, layout, fusion, shape, engines, built
//
// Operation graphs are those of torch: a convolution; + bias, ReLU; + bias, a sum, ReLU. Engines that
// round inputs to a narrower type are left out, for FP32 without TF32 also those on tensor cores.
#include <cudnn.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Descriptor = cudnnBackendDescriptor_t;
using Numbers = std::vector<int64_t>;

struct Failure {
    cudnnStatus_t status;
};

void check(cudnnStatus_t status) {
    if (status != CUDNN_STATUS_SUCCESS) throw Failure{status};
}

// Attribute types by the C++ types of their values.
template <class T> cudnnBackendAttributeType_t type_of();
template <> cudnnBackendAttributeType_t type_of<int64_t>() { return CUDNN_TYPE_INT64; }
template <> cudnnBackendAttributeType_t type_of<float>() { return CUDNN_TYPE_FLOAT; }
template <> cudnnBackendAttributeType_t type_of<char>() { return CUDNN_TYPE_CHAR; }
template <> cudnnBackendAttributeType_t type_of<Descriptor>() { return CUDNN_TYPE_BACKEND_DESCRIPTOR; }
template <> cudnnBackendAttributeType_t type_of<cudnnDataType_t>() { return CUDNN_TYPE_DATA_TYPE; }
template <> cudnnBackendAttributeType_t type_of<cudnnPointwiseMode_t>() { return CUDNN_TYPE_POINTWISE_MODE; }
template <> cudnnBackendAttributeType_t type_of<cudnnConvolutionMode_t>() {
    return CUDNN_TYPE_CONVOLUTION_MODE;
}
template <> cudnnBackendAttributeType_t type_of<cudnnBackendHeurMode_t>() { return CUDNN_TYPE_HEUR_MODE; }

Descriptor made(cudnnBackendDescriptorType_t type) {
    Descriptor descriptor;
    check(cudnnBackendCreateDescriptor(type, &descriptor));
    return descriptor;
}

template <class T>
void set(Descriptor descriptor, cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    check(cudnnBackendSetAttribute(descriptor, name, type_of<T>(), values.size(), values.data()));
}

Descriptor finished(Descriptor descriptor) {
    check(cudnnBackendFinalize(descriptor));
    return descriptor;
}

struct Convolution {
    const char* name;
    int64_t channels, size, filters, rows, columns, stride, groups;
};

const Convolution CONVOLUTIONS[] = {
    {"3x3, 32 x 147", 32, 147, 64, 3, 3, 1, 1},  {"5x5, 48 x 35", 48, 35, 64, 5, 5, 1, 1},
    {"1x1, 288 x 35", 288, 35, 64, 1, 1, 1, 1},  {"1x7, 192 x 17", 192, 17, 192, 1, 7, 1, 1},
    {"3x3, 448 x 8", 448, 8, 384, 3, 3, 1, 1},   {"7x7 by 2, 3 x 224", 3, 224, 64, 7, 7, 2, 1},
};

struct Setting {
    const char* name;
    cudnnDataType_t type;
    bool tensor_cores;
};

const Setting SETTINGS[] = {
    {"fp32", CUDNN_DATA_FLOAT, false},
    {"tf32", CUDNN_DATA_FLOAT, true},
    {"fp16", CUDNN_DATA_HALF, true},
    {"bf16", CUDNN_DATA_BFLOAT16, true},
};

enum Fusion { CONV, CONV_RELU, CONV_ADD_RELU };
const char* FUSIONS[] = {"conv", "conv-relu", "conv-add-relu"};

struct Question {
    Convolution conv;
    Setting setting;
    bool nhwc;
    Fusion fusion;
    int64_t next_id = 1;

    Descriptor tensor(const Numbers& shape, cudnnDataType_t type, bool is_virtual) {
        int64_t c = shape[1], h = shape[2], w = shape[3];
        Descriptor tensor = made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
        set<int64_t>(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, {next_id++});
        set<cudnnDataType_t>(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, {type});
        set<int64_t>(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
        set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, shape);
        set(tensor, CUDNN_ATTR_TENSOR_STRIDES,
            nhwc ? Numbers{c * h * w, 1, w * c, c} : Numbers{c * h * w, h * w, w, 1});
        check(cudnnBackendSetAttribute(
            tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual));
        return finished(tensor);
    }

    Descriptor pointwise(
        cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y) {
        Descriptor kind = made(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
        set<cudnnPointwiseMode_t>(kind, CUDNN_ATTR_POINTWISE_MODE, {mode});
        set<cudnnDataType_t>(kind, CUDNN_ATTR_POINTWISE_MATH_PREC, {CUDNN_DATA_FLOAT});
        Descriptor operation = made(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {finished(kind)});
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {x});
        if (b) set<Descriptor>(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, {b});
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, {y});
        return finished(operation);
    }

    Descriptor graph() {
        const Numbers padding = {conv.rows / 2, conv.columns / 2};
        const int64_t size = (conv.size + 2 * padding[0] - conv.rows) / conv.stride + 1;
        const int64_t width = (conv.size + 2 * padding[1] - conv.columns) / conv.stride + 1;
        const Numbers result = {1, conv.filters, size, width};
        Descriptor kind = made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
        set<int64_t>(kind, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2});
        set<cudnnDataType_t>(kind, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, {CUDNN_DATA_FLOAT});
        set<cudnnConvolutionMode_t>(kind, CUDNN_ATTR_CONVOLUTION_CONV_MODE, {CUDNN_CROSS_CORRELATION});
        set(kind, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding);
        set(kind, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding);
        set<int64_t>(kind, CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1});
        set<int64_t>(kind, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {conv.stride, conv.stride});

        auto inner = [&] { return tensor(result, CUDNN_DATA_FLOAT, true); };
        auto outer = [&](const Numbers& shape) { return tensor(shape, setting.type, false); };
        Descriptor y = outer(result), convolved = fusion == CONV ? y : inner();
        Descriptor operation = made(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
        set<float>(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, {1.f});
        set<float>(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, {0.f});
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, {finished(kind)});
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                        {outer({1, conv.channels, conv.size, conv.size})});
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        {outer({conv.filters, conv.channels / conv.groups, conv.rows, conv.columns})});
        set<Descriptor>(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, {convolved});
        std::vector<Descriptor> operations = {finished(operation)};
        if (fusion != CONV) {
            Descriptor bias = outer({1, conv.filters, 1, 1}), sum = convolved, biased = inner();
            if (fusion == CONV_ADD_RELU) {
                sum = inner();
                operations.push_back(pointwise(CUDNN_POINTWISE_ADD, convolved, outer(result), sum));
            }
            operations.push_back(pointwise(CUDNN_POINTWISE_ADD, sum, bias, biased));
            operations.push_back(pointwise(CUDNN_POINTWISE_RELU_FWD, biased, nullptr, y));
        }
        Descriptor graph = made(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
        return finished(graph);
    }
};

std::vector<Descriptor> configurations(Descriptor graph, cudnnBackendHeurMode_t mode, Descriptor device) {
    Descriptor heuristics = made(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set<Descriptor>(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, {graph});
    set<cudnnBackendHeurMode_t>(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, {mode});
    set<Descriptor>(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, {device});
    if (cudnnBackendFinalize(heuristics) != CUDNN_STATUS_SUCCESS) return {};
    int64_t count = 0;
    auto name = CUDNN_ATTR_ENGINEHEUR_RESULTS;
    check(cudnnBackendGetAttribute(heuristics, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
    std::vector<Descriptor> found(count);
    for (auto& configuration : found) configuration = made(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    check(cudnnBackendGetAttribute(
        heuristics, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, found.data()));
    found.resize(count);
    return found;
}

bool suits(Descriptor configuration, const Setting& setting) {
    Descriptor engine = made(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[64];
    int64_t count = 0;
    check(cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    check(cudnnBackendGetAttribute(
        engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 64, &count, notes));
    std::set<int> has(notes, notes + count);
    return !has.count(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
           (setting.tensor_cores || !has.count(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
}

bool builds(Descriptor configuration, Descriptor device) {
    Descriptor plan = made(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set<Descriptor>(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {configuration});
    set<Descriptor>(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, {device});
    bool built = cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS;
    cudnnBackendDestroyDescriptor(plan);
    return built;
}

void ask(Question question, Descriptor device) {
    int engines = 0;
    bool built = false;
    Descriptor graph = question.graph();
    for (auto mode : {CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_FALLBACK})
        for (Descriptor configuration : configurations(graph, mode, device))
            if (suits(configuration, question.setting)) {
                engines++;
                built = built || builds(configuration, device);  // the first that can be
            }
    printf("%s\t%s\t%s\t%s\t%d\t%d\n", question.setting.name, question.nhwc ? "nhwc" : "nchw",
           FUSIONS[question.fusion], question.conv.name, engines, built);
    fflush(stdout);
}

}  // namespace

int main(int, char** arguments) {
    std::stringstream text;
    text << std::ifstream(arguments[1]).rdbuf();
    const std::string json = text.str();
    try {
        Descriptor device = made(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
        set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
            std::vector<char>(json.begin(), json.end()));
        finished(device);
        for (auto& setting : SETTINGS)
            for (bool nhwc : {false, true})
                for (Fusion fusion : {CONV, CONV_RELU, CONV_ADD_RELU})
                    for (auto& conv : CONVOLUTIONS) ask({conv, setting, nhwc, fusion}, device);
    } catch (const Failure& failure) {
        fprintf(stderr, "%s\n", cudnnGetErrorString(failure.status));
        return 1;
    }
}
