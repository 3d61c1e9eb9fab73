"""Rotary parameters of a drafter's config.json, in transformers-4 or transformers-5 form."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtree.errors import ModelError
from ddtree.models.config_fields import ConfigFields, positive_number

# rope_type: (required numbers, optional numbers, optional booleans).
_SCALINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), (), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        ("truncate",),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        (),
        (),
    ),
}
_PER_LAYER_TYPE = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Rope:
    """`theta` is the base; `scaling` None or a checked dict with its `rope_type`."""

    theta: float
    scaling: dict[str, object] | None


def read_rope(fields: ConfigFields) -> Rope:
    """Read `rope_theta` + `rope_scaling`, `rope_parameters`, or both where they agree.

    `rope_parameters` may be nested per layer type if all layer types say the same. Types other
    than default, linear, yarn and llama3 raise: dynamic and longrope depend on the batch's
    longest row, so one request's output would depend on its neighbours.
    """
    if fields.value("partial_rotary_factor") not in (None, 1, 1.0):
        raise fields.error("partial_rotary_factor", fields.value("partial_rotary_factor"), "1.0")
    top_theta = fields.value("rope_theta")
    found: list[tuple[str, Rope]] = []
    modern = fields.value("rope_parameters")
    if modern is not None:
        for key, block in _blocks(fields, modern):
            found.append((key, _read_block(fields, key, block, top_theta)))
    legacy = fields.value("rope_scaling")
    if legacy is not None:
        block = _as_dict(fields, "rope_scaling", legacy)
        found.append(("rope_scaling", _read_block(fields, "rope_scaling", block, top_theta)))
    if not found:
        found.append(("rope_theta", _read_block(fields, "rope_theta", {}, top_theta)))
    first_key, rope = found[0]
    for key, other in found[1:]:
        if other != rope:
            raise ModelError(
                f"{fields.source}: {first_key} says {rope}, but {key} says {other}; one rotary "
                "embedding for all layers is expected"
            )
    return rope


def _as_dict(fields: ConfigFields, key: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise fields.error(key, value, "an object with rope_type")
    return value


def _blocks(fields: ConfigFields, value: object) -> list[tuple[str, dict[str, object]]]:
    key = "rope_parameters"
    block = _as_dict(fields, key, value)
    if not any(name in block for name in _PER_LAYER_TYPE):
        return [(key, block)]
    unknown = sorted(set(block) - set(_PER_LAYER_TYPE))
    if unknown:
        raise fields.error(f"{key}.{unknown[0]}", block[unknown[0]], "only layer types beside it")
    return [
        (f"{key}.{name}", _as_dict(fields, f"{key}.{name}", inner)) for name, inner in block.items()
    ]


def _read_block(
    fields: ConfigFields, key: str, block: Mapping[str, object], top_theta: object
) -> Rope:
    present = {name: value for name, value in block.items() if value is not None}
    rope_type = _rope_type(fields, key, present)
    theta = _theta(fields, key, present.pop("rope_theta", None), top_theta)
    if present.pop("partial_rotary_factor", 1.0) != 1:
        raise fields.error(f"{key}.partial_rotary_factor", block["partial_rotary_factor"], "1.0")
    if rope_type == "default":
        _refuse_unknown(fields, key, present, ())
        return Rope(theta, None)
    if rope_type not in _SCALINGS:
        supported = ", ".join(("default", *_SCALINGS))
        raise fields.error(f"{key}.rope_type", rope_type, f"one of {supported}")
    return Rope(theta, _scaling(fields, key, rope_type, present))


def _rope_type(fields: ConfigFields, key: str, present: dict[str, object]) -> str:
    """Take `rope_type` and its older spelling `type` out of `present`."""
    values = [present.pop(name) for name in ("rope_type", "type") if name in present]
    if not values:
        if present.keys() - {"rope_theta", "partial_rotary_factor"}:
            raise fields.error(f"{key}.rope_type", None, "the kind of scaling")
        return "default"
    if any(value != values[0] for value in values):
        raise fields.error(f"{key}.rope_type", values[0], f"the same as its type, {values[1]!r}")
    if not isinstance(values[0], str):
        raise fields.error(f"{key}.rope_type", values[0], "a string")
    return values[0]


def _theta(fields: ConfigFields, key: str, inner: object, top: object) -> float:
    if inner is None and top is None:
        raise ModelError(
            f"{fields.source}: rope_theta is missing (looked at top level, in dflash_config and "
            "in rope_parameters), expected a number above 0"
        )
    thetas = [
        positive_number(fields, name, value)
        for name, value in ((f"{key}.rope_theta", inner), ("rope_theta", top))
        if value is not None
    ]
    if len(set(thetas)) > 1:
        raise fields.error(f"{key}.rope_theta", inner, f"the same as top-level rope_theta, {top}")
    return thetas[0]


def _scaling(
    fields: ConfigFields, key: str, rope_type: str, present: Mapping[str, object]
) -> dict[str, object]:
    required, optional, flags = _SCALINGS[rope_type]
    _refuse_unknown(fields, key, present, (*required, *optional, *flags))
    scaling: dict[str, object] = {"rope_type": rope_type}
    for name in required:
        if name not in present:
            raise ModelError(f"{fields.source}: {key}.{name} is missing, {rope_type} needs it")
    for name, value in present.items():
        full_name = f"{key}.{name}"
        if name in flags:
            if not isinstance(value, bool):
                raise fields.error(full_name, value, "true or false")
            scaling[name] = value
        else:
            scaling[name] = positive_number(fields, full_name, value)
    original = scaling.get("original_max_position_embeddings")
    if isinstance(original, float):
        if not original.is_integer():
            raise fields.error(f"{key}.original_max_position_embeddings", original, "an integer")
        scaling["original_max_position_embeddings"] = int(original)
    return scaling


def _refuse_unknown(
    fields: ConfigFields, key: str, present: Mapping[str, object], known: tuple[str, ...]
) -> None:
    unknown = sorted(set(present) - set(known))
    if unknown:
        raise fields.error(
            f"{key}.{unknown[0]}", present[unknown[0]], "no such key for this rope_type"
        )
