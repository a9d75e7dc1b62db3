"""Whether an instance can serve beside others."""

from inlay.core.instance_messages import PROTOCOL, InstanceInfo

_FINGERPRINT = "the model's fingerprint"


def difference(reference: InstanceInfo, info: InstanceInfo, secret: bytes) -> str:
    """Why an instance cannot serve beside another one; empty if it can.

    Instances that differ here would give other text, or blocks that nobody else can use. Weights
    that have replaced those that were loaded first are another matter: see `WeightGroups`.
    """
    if info.protocol != PROTOCOL:
        return (
            f"it speaks protocol {info.protocol} (Inlay {info.version}), this dispatcher speaks "
            f"{PROTOCOL}: run the same version of Inlay everywhere"
        )
    mine, its = _facts(reference), _facts(info)
    if reference.namespace.weight_version or info.namespace.weight_version:
        del mine[_FINGERPRINT], its[_FINGERPRINT]
    unlike = [
        f"{name} is {its[name]}, that of {reference.name} is {value}"
        for name, value in mine.items()
        if its[name] != value
    ]
    if unlike:
        return "; ".join(unlike)
    if info.key_check != info.namespace.key_check(secret):
        return "its cache.secret is not the deployment's"
    return ""


def _facts(info: InstanceInfo) -> dict[str, object]:
    space = info.namespace
    kv_format = space.kv_format.whole  # however ranks divide it
    layout = {
        f"kv_format.{name}": getattr(kv_format, name)
        for name in kv_format.__struct_fields__
        if name not in ("tp_degree", "tp_rank")
    }
    return {
        _FINGERPRINT: space.fingerprint,
        "weight_format": space.weight_format,
        "adapter": space.adapter,
        "adapters": info.engine.adapters,
        "vocab_size": info.engine.vocab_size,
        "max_context_tokens": info.engine.max_context_tokens,
        **layout,
    }
