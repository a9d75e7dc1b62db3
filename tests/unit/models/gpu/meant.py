"""PyTorch with the weights that packed codes mean: what the GPU's operations are compared with."""

from inlay.models.native_ops import NativeOps
from inlay.models.ops import ExpertTensors
from inlay.models.torch_ops import TorchOps


class Meant(TorchOps):
    """What packed weights mean, in float32."""

    def __init__(self, device):
        super().__init__(device)
        self._host = NativeOps()

    @property
    def weight_formats(self):
        return self._host.weight_formats

    def pack_linear(self, parts_NM, bias_parts_N, weight_format):
        (packed,) = self._host.pack_linear(parts_NM, (), weight_format).weights
        return super().pack_linear([packed.dequantize()], bias_parts_N, "float32")

    def pack_heads(self, parts_HNK, weight_format):
        packed = (self._host.pack_linear([part], (), weight_format) for part in parts_HNK)
        meant = [one.weights[0].dequantize() for one in packed]
        return super().pack_heads(meant, "float32")

    def new_experts(self, experts, hidden, width, weight_format, *, down_format=None, biases=False):
        self._format = weight_format
        return super().new_experts(experts, hidden, width, "float32", biases=biases)

    def set_expert(self, experts, number, tensors):
        width, hidden = tensors.gate_FM.shape
        host = self._host.new_experts(1, hidden, width, self._format)
        self._host.set_expert(host, 0, tensors._replace(biases=None))
        super().set_expert(experts, number, ExpertTensors(*host.dequantize(0), tensors.biases))
