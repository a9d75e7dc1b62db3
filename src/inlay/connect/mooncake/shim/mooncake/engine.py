"""`mooncake.engine`, served by Inlay."""

from inlay.connect.mooncake.absent import absent_class, absent_function
from inlay.connect.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

Read, Write = TransferOpcode.Read, TransferOpcode.Write
InnerTransferEngine = TransferEngine

_MESSAGES = "send messages by inlay.transfer.TransferEngine"
RpcInterface = CoroRPCInterface = absent_class("RpcInterface", _MESSAGES)
ReceivedData = absent_class("ReceivedData", _MESSAGES)
ReceivedTensor = absent_class("ReceivedTensor", _MESSAGES)
SharedSegment = absent_class("SharedSegment", "peers on a host map allocate_managed_buffer")
create_rpc_client = absent_function("create_rpc_client", _MESSAGES)
create_rpc_server = absent_function("create_rpc_server", _MESSAGES)

# Which hardware Mooncake was built for; Inlay looks for it when it runs.
SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False
SUPPORT_INTRA_NVLINK = False

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "CoroRPCInterface",
    "InnerTransferEngine",
    "Read",
    "ReceivedData",
    "ReceivedTensor",
    "RpcInterface",
    "SharedSegment",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
    "create_rpc_client",
    "create_rpc_server",
]
