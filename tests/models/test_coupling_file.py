"""coupling.json: read right, or an error that names the file."""

import json

import pytest
import torch
from safetensors.torch import save_file

from ddtree.errors import ModelError
from ddtree.models.coupling_file import Calibration, DepthWeights, load_calibration
from ddtree.models.drafter import load_drafter
from ddtree.models.zoo import ZOO, shipped_drafter
from models.test_drafter import CONFIG
from support.tiny import tiny_drafter, tiny_target

COLD = {"temperature": 0.5, "log_q": [1, 1], "noise": [0, 0], "rest": [0, 0]}
HOT = {"temperature": 1.0, "log_q": [1.5, 1.25], "noise": [1, 0.5], "rest": [2, -1]}
GOOD = {"schema_version": 1, "fitted_on": {"prompts": 3}, "weights": [COLD, HOT]}


def write(folder, data):
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / "coupling.json").write_text(text)
    return folder


def test_weights_by_temperature(tmp_path):
    calibration = load_calibration(write(tmp_path, GOOD), 2)
    hot = DepthWeights((1.5, 1.25), (1.0, 0.5), (2.0, -1.0))
    assert calibration == Calibration(
        (0.5, 1.0), (DepthWeights((1.0, 1.0), (0.0, 0.0), (0.0, 0.0)), hot)
    )
    # Plain where the file says so, below its lowest temperature, and for greedy decoding.
    for plain in (0.5, 0.49, 0.01, 0.0):
        assert calibration.at(plain) is None
    assert calibration.at(1.0) == calibration.at(1.7) == hot
    # 1 / 0.8 lies three quarters of the way from 1 / 0.5 to 1.
    between = calibration.at(0.8)
    assert between.log_q == pytest.approx((1.375, 1.1875))
    assert between.noise == pytest.approx((0.75, 0.375))
    assert between.rest == pytest.approx((1.5, -0.75))
    # The middle between 1 / T = 2 and 1.
    assert calibration.at(2 / 3).noise == pytest.approx((0.5, 0.25))


def test_a_checkpoint_without_the_file_ranks_by_probability(tmp_path):
    assert load_calibration(tmp_path, 2) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("{", "Invalid JSON"),
        ("[]", "the file: "),
        ({"schema_version": 2}, "schema_version"),
        ({"weights": []}, "weights"),
        ({"weights": [{**HOT, "log_q": [1, 0]}]}, "weights.0.log_q.1"),
        ({"weights": [{**HOT, "noise": [1, -0.1]}]}, "weights.0.noise.1"),
        ({"weights": [{**HOT, "rest": [1, "2"]}]}, "weights.0.rest.1"),
        ({"weights": [{**HOT, "temperature": 0}]}, "weights.0.temperature"),
        ({"weights": [{**HOT, "temperatur": 1}]}, "weights.0.temperatur"),
        ({"weights": [{**HOT, "rest": [1]}]}, "rest at temperature 1 has 1 numbers"),
        ({"weights": [HOT, COLD]}, "do not ascend"),
        ({"weights": [HOT, HOT]}, "do not ascend"),
    ],
)
def test_a_broken_file_is_named(tmp_path, change, says):
    write(tmp_path, change if isinstance(change, str) else {**GOOD, **change})
    with pytest.raises(ModelError) as caught:
        load_calibration(tmp_path, 2)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "coupling.json"))
    assert says in message
    assert message.endswith("or remove it to rank candidates by probability")


def test_numbers_that_json_does_not_have(tmp_path):
    broken = json.dumps(GOOD).replace("1.5", "Infinity")
    with pytest.raises(ModelError, match=r"weights\.1\.log_q\.0"):
        load_calibration(write(tmp_path, broken), 2)


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    write(tmp_path, GOOD)

    def fail(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", fail)
    with pytest.raises(ModelError, match=r"coupling\.json: can't be read"):
        load_calibration(tmp_path, 2)


def test_it_is_loaded_with_the_drafter(tmp_path):
    weights = tiny_drafter(tiny_target()).state_dict()
    save_file(
        {name: value.float() for name, value in weights.items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert load_drafter(tmp_path, torch.float64, "cpu").calibration is None
    entry = {**HOT, **{name: [1, 1, 1, 1] for name in ("log_q", "noise", "rest")}}
    write(tmp_path, {**GOOD, "weights": [entry]})
    calibration = load_drafter(tmp_path, torch.float64, "cpu").calibration
    assert calibration.at(1.0).noise == (1, 1, 1, 1)
    write(tmp_path, GOOD)
    with pytest.raises(ModelError, match="has 2 numbers, this drafter has 4 depths"):
        load_drafter(tmp_path, torch.float64, "cpu")


@pytest.mark.parametrize("entry", ZOO.values(), ids=lambda entry: entry.name)
def test_shipped_drafters_are_calibrated(entry):
    """At temperature 1 the noise counts at depth 1, and ever less with depth."""
    folder = shipped_drafter(entry)
    depth = json.loads((folder / "config.json").read_text())["block_size"] - 1
    weights = load_calibration(folder, depth).at(1.0)
    assert weights.noise[0] > 0.5
    assert list(weights.noise) == sorted(weights.noise, reverse=True)
