"""A checkpoint's sampling defaults hold for what a request leaves unset, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.workers.counting_worker import counted, write_tokenizer
from support.workers.work import Work

from millstream import AsyncClient, Result
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request, read_request
from millstream.wire.messages.sampling import DEFAULTED, SamplingParams
from millstream_worker.text.sampling_defaults import SamplingDefaults

VALUES = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


def read(folder: Path, text: str | dict[str, Any]) -> SamplingDefaults:
    given = text if isinstance(text, str) else json.dumps(text)
    (folder / "generation_config.json").write_text(given, "utf-8")
    return SamplingDefaults.read(str(folder))


def filled(defaults: SamplingDefaults, **sampling: Any) -> tuple[SamplingParams, dict[str, Any]]:
    """As a worker reads the request of a client of this build."""
    sent = codec.encode(Request(prompt="x", sampling=SamplingParams(**sampling)))
    request, by_default = defaults.fill(read_request(sent))
    return request.sampling, by_default


def test_each_parameter_left_unset_has_the_default(tmp_path: Path) -> None:
    sampling, by_default = filled(read(tmp_path, VALUES | {"max_new_tokens": 7, "do_sample": False}), seed=3)
    assert by_default == VALUES | {"max_tokens": 7}
    assert {name: getattr(sampling, name) for name in DEFAULTED} == VALUES
    assert (sampling.seed, sampling.max_tokens) == (3, None)


@pytest.mark.parametrize("name", DEFAULTED)
def test_a_value_that_was_set_stays_also_where_it_is_usual(name: str, tmp_path: Path) -> None:
    usual = SamplingParams.model_fields[name].default
    sampling, by_default = filled(read(tmp_path, VALUES), **{name: usual})
    assert getattr(sampling, name) == usual
    assert by_default == {other: value for other, value in VALUES.items() if other != name}


def test_messages_without_settings_are_as_small_as_before() -> None:
    assert codec.unpack(codec.encode(Request(prompt="x"))) == {"prompt": "x"}
    said = Request(prompt="x", sampling=SamplingParams(temperature=1.0, n=1, max_tokens=4))
    assert codec.unpack(codec.encode(said))["sampling"] == {"temperature": 1.0, "max_tokens": 4}
    assert "sampling" in said.model_dump()


def test_what_an_older_client_leaves_out_counts_as_unset(tmp_path: Path) -> None:
    """It sends no value that equals the usual default."""
    older = codec.pack({"prompt": "x", "sampling": {"seed": 3}})
    assert read(tmp_path, VALUES).fill(read_request(older))[1] == VALUES
    assert Request(prompt="x", sampling=SamplingParams(temperature=1.0)).lowest_version() == 1


def test_greedy_sampling_gets_no_default_of_draws(tmp_path: Path) -> None:
    sampling, by_default = filled(read(tmp_path, VALUES), temperature=0)
    assert by_default == {"repetition_penalty": 1.1}
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)
    defaults = read(tmp_path, {"temperature": 0, "top_k": 5})
    assert filled(defaults)[1] == {"temperature": 0}


def test_a_default_of_zero_makes_an_answer_that_is_kept(tmp_path: Path) -> None:
    """The worker decides by what it samples with; the client, which does not know it, keeps nothing."""
    request, _ = read(tmp_path, {"temperature": 0}).fill(asked := Request(prompt="x"))
    assert (asked.may_be_kept, request.may_be_kept) == (False, True)


def test_a_default_bound_gives_way_to_the_request(tmp_path: Path) -> None:
    defaults = read(tmp_path, {"max_new_tokens": 7})
    assert filled(defaults, max_tokens=9)[1] == {}
    assert filled(defaults, min_tokens=8)[1] == {}
    assert filled(defaults, max_tokens=None)[1] == {"max_tokens": 7}


def test_values_that_change_nothing_are_not_told(tmp_path: Path) -> None:
    request = Request(prompt="x")
    neutral = {"temperature": 1, "top_p": 1.0, "top_k": None, "eos_token_id": 2}
    assert read(tmp_path, neutral).fill(request) == (request, {})
    assert SamplingDefaults.read(str(tmp_path / "elsewhere")).values == {}


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"top_k": "5"}, {"min_p": 2}, {"max_new_tokens": 0}]
)
def test_values_out_of_bounds_are_passed_over(wrong: dict[str, Any], tmp_path: Path) -> None:
    with capture_logs() as told:
        assert read(tmp_path, wrong | {"repetition_penalty": 1.2}).values == {"repetition_penalty": 1.2}
    assert [line["log_level"] for line in told] == ["warning", "info"]


@pytest.mark.parametrize("text", ["{", "[1]", "null"])
def test_a_file_that_says_nothing_sets_nothing(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text).values == {}


async def test_answers_name_the_defaults_that_made_them(
    client: AsyncClient, work: Work, tmp_path: Path
) -> None:
    """A result is kept by what it was sampled with, and found by a request that says the same."""
    folder = write_tokenizer(tmp_path / "tokenizer")
    read(folder, VALUES | {"max_new_tokens": 3})

    async def answer(**fields: Any) -> Result:
        return await client.wait((await client.submit("w1", **fields)).id, timeout_s=30)

    async with work(tokenizer=folder, result_cache=2**20):
        first, said = await answer(seed=1), await answer(seed=1, max_tokens=3, **VALUES)
        own = await answer(seed=1, max_tokens=3, temperature=1.0)
    assert (first.text, first.sampling) == (counted(2, 3), VALUES | {"max_tokens": 3})
    assert (said.text, said.sampling, said.cached) == (first.text, None, True)
    assert own.cached is False
    assert own.sampling == {name: value for name, value in VALUES.items() if name != "temperature"}
    async with work(tokenizer=folder, generation_config="off", result_cache=2**20):
        off, again = await answer(seed=1, stop="w9"), await answer(seed=1, max_tokens=3)
    assert (off.text, off.sampling) == (counted(2, 7) + " ", None)
    assert (again.cached, again.sampling) == (False, None)  # what the defaults made is another answer
