"""`mooncake.store`, served by Inlay."""

from inlay.connect.mooncake.absent import absent_class, absent_function
from inlay.connect.mooncake.buffer_pool import BufferLease, BufferPool
from inlay.connect.mooncake.host_memory import BufferHandle, MooncakeHostMemAllocator
from inlay.connect.mooncake.replicas import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ObjectDataType,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    TaskStatus,
    TaskType,
)
from inlay.connect.mooncake.store import MooncakeDistributedStore

RegisteredBufferPool = BufferPool
BufferLeaseView = RegisteredBufferLease = RegisteredBufferLeaseView = BufferLease

# Members of the enumerations are names of the module, too.
globals().update(ObjectDataType.__members__)
globals().update(ReplicaStatus.__members__)
globals().update(TaskType.__members__)
globals().update(TaskStatus.__members__)

_TP = "the calls whose names end in _with_tp take tp_rank, tp_size and split_dim"
ParallelAxis = absent_class("ParallelAxis", _TP)
TensorParallelism = absent_class("TensorParallelism", _TP)
ReadTarget = absent_class("ReadTarget", _TP)
EngramStore = absent_class("EngramStore", "put its tables as tensors")
EngramStoreConfig = absent_class("EngramStoreConfig", "put its tables as tensors")
MooncakeDistributedNoFRegister = absent_class(
    "MooncakeDistributedNoFRegister", "a node's disk is behind its memory: enable_ssd_offload"
)
bind_to_numa_node = absent_function("bind_to_numa_node", "start the process by numactl")
get_alloc_func_addr = absent_function("get_alloc_func_addr", "use MooncakeHostMemAllocator")
get_free_func_addr = absent_function("get_free_func_addr", "use MooncakeHostMemAllocator")

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]
