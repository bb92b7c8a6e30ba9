"""Names of everything: one hash tag for a shard, ids that any client can compute."""

from __future__ import annotations

import zlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidRequest
from millstream.wire.keys import QueueKeys, check_own_id, full_id, job_id_of, new_own_id, shard_of

OWN_IDS = st.from_regex(r"(?![0-9]{1,9}-)[A-Za-z0-9._:-]{1,200}", fullmatch=True)


def test_all_names_of_a_shard_carry_its_hash_tag() -> None:
    shard = QueueKeys("docs").shard(3)
    names = [
        *shard.parked_lanes(), *shard.end_keys("3-a"), shard.events("3-a"), shard.control, shard.dead,
        shard.worker("w"),
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert {name.partition("}")[0] for name in names} == {"{ms:docs:3"}


@pytest.mark.parametrize("queue", ["", "a{b", "a}b", "a b", "a\nb", "a\x00", "q" * 101])
def test_queue_names_that_would_break_the_hash_tag_are_refused(queue: str) -> None:
    with pytest.raises(InvalidRequest, match="queue: 1 to 100 characters without braces"):
        QueueKeys(queue)


@pytest.mark.parametrize("queue", ["default", "Qwen/Qwen3-0.6B", "résumés", "a:b"])
def test_queue_names_of_models_are_fine(queue: str) -> None:
    assert QueueKeys(queue).shard(0).tag == f"{{ms:{queue}:0}}"


@pytest.mark.parametrize(
    "own_id", ["", "a b", "a/b", "ä", "x" * 201, "a\n", "{a}", "0-a", "2026-11-22", "123456789-"]
)
def test_own_ids_are_refused_with_their_value(own_id: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_own_id(own_id)
    assert (caught.value.field, caught.value.value) == ("id", own_id)


@given(OWN_IDS, st.integers(1, 64))
def test_a_job_id_tells_its_shard(own_id: str, shards: int) -> None:
    job_id = job_id_of(check_own_id(own_id), shards)
    assert shard_of(job_id) == zlib.crc32(own_id.encode()) % shards
    assert job_id.partition("-")[2] == own_id


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("6-invoice-17", "6-invoice-17"),
        ("invoice-17", "1-invoice-17"),
        ("1234567890-a", "6-1234567890-a"),
        ("0-", "3-0-"),
        *((name, None) for name in ("", "0-a b", "a/b", "٣-a", "x" * 201)),
    ],
)
def test_a_job_is_found_by_its_full_id_and_by_its_own(name: str, found: str | None) -> None:
    assert full_id(name, 7) == found


def test_new_ids_are_valid_and_new() -> None:
    ids = {check_own_id(new_own_id()) for _ in range(100)}
    assert len(ids) == 100


@given(st.text(min_size=1), st.integers(1, 1024))
def test_ids_drawn_for_one_content_differ_and_share_a_shard(content: str, shards: int) -> None:
    ids = [check_own_id(new_own_id(content, shards)) for _ in range(3)]
    assert len(set(ids)) == 3
    assert len({shard_of(job_id_of(own_id, shards)) for own_id in ids}) == 1


def test_ids_drawn_for_many_contents_are_spread_evenly() -> None:
    drawn = [new_own_id(f"{number:032x}", 8) for number in range(4000)]
    spread = Counter(shard_of(job_id_of(own_id, 8)) for own_id in drawn)
    assert set(spread) == set(range(8))
    assert all(400 < jobs < 600 for jobs in spread.values()), spread
