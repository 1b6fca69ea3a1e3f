"""What is known about inference servers: every file valid, every mistake named."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.config.profile import Profile, ProfileError, Signals, load_profile, parse_profile, profile_names
from proxy.wire.registry import AUTO, detect, route_names, wire_format

EXPECTED = {
    "anthropic",
    "vllm",
    "sglang",
    "tgi",
    "llamacpp",
    "ollama",
    "tei",
    "triton",
    "tf-serving",
    "openai",
    "trimtab-worker",
}


def test_the_servers_people_run_are_known() -> None:
    assert set(profile_names()) == EXPECTED | {"auto"}


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_validates_and_says_something_consistent(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    spoken = {route.name for wire in profile.wire for route in (wire_format(wire).routes if wire != AUTO else ())}
    if AUTO not in profile.wire:
        assert set(profile.dispatch.routes) <= spoken, "dispatch of an operation it does not speak"
    if profile.health.path:
        assert not detect("GET", profile.health.path).route.queued
    if profile.metrics:
        assert not detect("GET", profile.metrics.path).route.queued


@pytest.mark.parametrize("name", profile_names())
def test_generation_is_never_merged_unless_the_operator_says_so(name: str) -> None:
    profile = load_profile(name)
    for route in ("chat.completions", "completions", "responses", "messages", "generate", "kserve.infer", "rerank"):
        assert profile.dispatch_for(route) == "gate"


def test_only_what_is_safe_to_merge_unasked_is_merged_by_the_profile_of_an_unknown_server() -> None:
    safe = {
        route.name
        for name in ("openai", "ollama", "tei", "tfserving")
        for route in wire_format(name).routes
        if route.auto_merge
    }
    merged = {route for route in route_names() if load_profile("auto").dispatch_for(route) == "merge"}
    assert merged <= safe


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("nme: vllm", "vllm.yaml: nme: "),
        ("health: {pth: /health}", "vllm.yaml: health.pth: "),
        ("health: {path: health}", "vllm.yaml: health.path: "),
        ("wire: [opnai]", "vllm.yaml: wire: .*unknown wire formats opnai; known are auto, openai"),
        ("dispatch: {routes: {chat: merge}}", "vllm.yaml: dispatch.routes: .*unknown operations chat; known are "),
        ("dispatch: {default: sometimes}", "vllm.yaml: dispatch.default: "),
        ("metrics: {port: 0}", "vllm.yaml: metrics.port: "),
        ("metrics: {running: ['bad name']}", r"vllm.yaml: metrics.running.0.name: "),
        ("keepalive_s: -1", "vllm.yaml: keepalive_s: "),
        ("pads: perhaps", "vllm.yaml: pads: "),
        ("name: other", "vllm.yaml: name: is 'other', the file's name says 'vllm'"),
        ("title: [", "vllm.yaml: not valid YAML"),
    ],
)
def test_a_mistake_in_a_profile_is_named_with_file_and_key(spoil: str, says: str) -> None:
    fields = {"name: vllm", "title: vLLM", "wire: [openai]"}
    kept = [field for field in sorted(fields) if field.split(":")[0] != spoil.split(":")[0]]
    with pytest.raises(ProfileError, match=says):
        parse_profile("\n".join([*kept, spoil]), "vllm.yaml")


def test_an_empty_file_is_a_mistake_too() -> None:
    with pytest.raises(ProfileError, match=re.escape("x.yaml: (the whole file): ")):
        parse_profile("", "x.yaml")


def test_an_unknown_profile_is_named_with_its_neighbours() -> None:
    with pytest.raises(
        ProfileError, match=r"unknown profile 'vlm'. Did you mean 'vllm'\? Known: anthropic, auto, llamacpp"
    ):
        load_profile("vlm")
    with pytest.raises(ProfileError, match="unknown profile"):
        load_profile("../profiles/vllm")


def test_a_profile_is_frozen() -> None:
    with pytest.raises(ValidationError):
        load_profile("vllm").name = "other"  # type: ignore[misc]


VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a, \\"quoted\\" } name"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0 1700000000
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:gpu_cache_usage_perc 0.9
"""


@pytest.mark.parametrize(
    ("name", "text", "signals"),
    [
        ("vllm", VLLM, Signals(7.0, 2.0, 0.75)),
        ("vllm", "vllm:gpu_cache_usage_perc 0.5", Signals(None, None, 0.5)),
        ("vllm", "vllm:num_requests_running NaN\nvllm:num_requests_waiting x\n\x00", Signals()),
        ("vllm", "", Signals()),
        ("llamacpp", "llamacpp:requests_processing 1\nllamacpp:requests_deferred 5", Signals(1.0, 5.0, None)),
        (
            "triton",
            'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 4\n'
            'nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 2\n'
            'nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 512\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.5\n'
            'nv_inference_pending_request_count{model="m"} 9\n',
            Signals(2.0, 4.0, 0.5),
        ),
        ("triton", 'nv_inference_pending_request_count{model="m"} 9', Signals(None, 9.0, None)),
        ("ollama", VLLM, Signals()),
    ],
)
def test_load_is_read_from_a_servers_metrics(name: str, text: str, signals: Signals) -> None:
    assert load_profile(name).read_signals(text) == signals


@given(text=st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_the_reader(text: str) -> None:
    assert load_profile("vllm").read_signals("vllm:num_requests_running" + text) is not None


def test_profiles_hold_nothing_but_the_schema_and_load_from_the_package() -> None:
    dumped = yaml.safe_dump(load_profile("vllm").model_dump(mode="json"))
    assert parse_profile(dumped, "vllm.yaml") == load_profile("vllm")
    assert isinstance(load_profile("vllm"), Profile)
