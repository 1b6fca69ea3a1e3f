"""File, environment and flags: who wins, and what the errors say."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from proxy.config.errors import ConfigError
from proxy.config.load import Override, load
from proxy.config.model import Config

FIVE_LINES = """\
upstreams:
  - http://127.0.0.1:8000
slo:
  ttft_ms: 500
  e2e_ms: 10000
"""

TWO_POOLS = """\
pools:
  - name: chat
    upstreams: [http://127.0.0.1:8000]
  - name: embed-small
    upstreams: [http://127.0.0.1:8001]
"""


def read(tmp_path: Path, text: str, environ: dict[str, str] | None = None, *overrides: Override) -> Config:
    path = tmp_path / "trimtab.yaml"
    path.write_text(dedent(text))
    return load(path, environ=environ or {}, overrides=overrides)


def complaint(tmp_path: Path, text: str, environ: dict[str, str] | None = None, *overrides: Override) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, environ, *overrides)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_five_lines_are_a_configuration(tmp_path: Path) -> None:
    pool = read(tmp_path, FIVE_LINES).pool("default")
    assert pool.slo.ttft_ms == 500
    assert pool.slo.e2e_ms == 10_000


def test_environment_wins_over_file_and_flags_over_both(tmp_path: Path) -> None:
    environ = {"TRIMTAB_LISTEN__PORT": "2000", "TRIMTAB_LISTEN__HOST": "::1", "TRIMTAB_SLO__TTFT_MS": "700"}
    config = read(
        tmp_path,
        FIVE_LINES + "listen: {port: 1000, backlog: 7}\n",
        environ,
        Override(("listen", "port"), 3000, "--port"),
    )
    assert (config.listen.port, config.listen.host, config.listen.backlog) == (3000, "::1", 7)
    assert config.pools[0].slo.ttft_ms == 700
    assert config.pools[0].slo.e2e_ms == 10_000


def test_environment_alone_is_enough() -> None:
    config = load(None, environ={"TRIMTAB_UPSTREAMS": "http://a:1,http://b:2", "TRIMTAB_LOG__ACCESS": "true"})
    assert [upstream.url for upstream in config.pools[0].upstreams] == ["http://a:1", "http://b:2"]
    assert config.log.access is True


def test_lists_and_mappings_in_the_environment_are_yaml() -> None:
    environ = {
        "TRIMTAB_UPSTREAMS": "[{url: http://a:1, weight: 2}]",
        "TRIMTAB_UPSTREAMS__0__PROFILE": "vllm",
        "TRIMTAB_LAW_OPTIONS__BACK_OFF": "0.8",
        "TRIMTAB_SLO__TTFT_MS": "null",
    }
    (pool,) = load(None, environ=environ).pools
    assert (pool.upstreams[0].weight, pool.upstreams[0].profile) == (2.0, "vllm")
    assert pool.law_options == {"back_off": 0.8}
    assert pool.slo.ttft_ms is None


@pytest.mark.parametrize("token", ["1234567890123456", "0x1234567890abcdef", "true, really: yes"])
def test_a_secret_in_the_environment_may_look_like_anything(token: str) -> None:
    config = load(None, environ={"TRIMTAB_UPSTREAMS": "http://a:1", "TRIMTAB_ADMIN__TOKEN": token})
    assert config.admin.token is not None
    assert config.admin.token.get_secret_value() == token


@pytest.mark.parametrize("address", ["EMBED_SMALL", "1"])
def test_pools_are_addressed_by_name_or_number(tmp_path: Path, address: str) -> None:
    config = read(tmp_path, TWO_POOLS, {f"TRIMTAB_POOLS__{address}__SLO__E2E_MS": "900"})
    assert config.pool("embed-small").slo.e2e_ms == 900
    assert config.pool("chat").slo.e2e_ms is None


def test_variables_of_kubernetes_services_are_left_alone(tmp_path: Path) -> None:
    environ = {
        "TRIMTAB_SERVICE_HOST": "10.0.0.1",
        "TRIMTAB_PORT": "tcp://10.0.0.1:80",
        "TRIMTAB_PORT_8080_TCP_ADDR": "10.0.0.1",
        "TRIMTAB_ADMIN_SERVICE_PORT_HTTP": "8081",
        "TRIMTAB_ADMIN_PORT": "tcp://10.0.0.2:8081",
        "TRIMTAB_CONFIG": "elsewhere.yaml",
        "TRIMTAB_CTL_TOKEN": "t",
        "TRIMTAB_WORKER_API_KEY": "k",
    }
    assert read(tmp_path, FIVE_LINES, environ) == read(tmp_path, FIVE_LINES)


def test_references_to_the_environment_are_filled_in(tmp_path: Path) -> None:
    text = """\
        upstreams: [{url: "http://${HOST}:${PORT:-8000}", api_key: "${KEY}"}]
        match: {models: ["cost$$"]}
        """
    pool = read(tmp_path, text, {"HOST": "gpu-1", "KEY": "s3cret"}).pools[0]
    assert pool.upstreams[0].url == "http://gpu-1:8000"
    assert pool.upstreams[0].api_key is not None
    assert pool.upstreams[0].api_key.get_secret_value() == "s3cret"
    assert pool.match.models == ("cost$",)


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = """\
        pools:
          - &base {name: a, upstreams: [http://a:1], depth: 3}
          - {<<: *base, name: b}
        """
    config = read(tmp_path, text)
    assert (config.pool("b").depth, config.pool("b").upstreams[0].url) == (3, "http://a:1")


SAYS = [
    (
        "an unknown key at the top",
        "upstreams: [http://a:1]\nlistn: {port: 1}\n",
        "trimtab.yaml:2: listn: unknown key; did you mean listen?",
    ),
    (
        "an unknown pool key at the top",
        "upstream: [http://a:1]\n",
        "trimtab.yaml: no upstream is given; add `upstreams: [http://127.0.0.1:8000]` or --upstream URL\n"
        "trimtab.yaml:1: upstream: unknown key; did you mean upstreams?",
    ),
    (
        "a key without its unit",
        "upstreams: [http://a:1]\nslo:\n  ttft: 500\n",
        "trimtab.yaml:3: slo.ttft: unknown key; did you mean ttft_ms?",
    ),
    (
        "an unknown key in a pool",
        "pools:\n  - name: a\n    upstreams: [http://a:1]\n    quue: {max_requests: 5}\n",
        "trimtab.yaml:4: pools[0].quue: unknown key; did you mean queue?",
    ),
    (
        "a negative window",
        "upstreams: [http://a:1]\nsetpoints:\n  window_ms:\n    min: -5\n",
        "trimtab.yaml:4: setpoints.window_ms.min: got -5; accepted: a number from 0 to 60000 (milliseconds)",
    ),
    (
        "a negative window, written short",
        "upstreams: [http://a:1]\nsetpoints: {window_ms: -5}\n",
        "trimtab.yaml:2: setpoints.window_ms.initial: got -5; accepted: a number from 0 to 60000 (milliseconds)",
    ),
    (
        "min above max",
        "upstreams: [http://a:1]\nsetpoints:\n  max_batch_size: {min: 9, max: 8, initial: 8}\n",
        "trimtab.yaml:3: setpoints.max_batch_size: min (9) must not exceed max (8)",
    ),
    (
        "a word for a number",
        "upstreams: [http://a:1]\nlisten: {port: http}\n",
        "trimtab.yaml:2: listen.port: got 'http'; accepted: a whole number from 0 to 65535",
    ),
    (
        "a choice that does not exist",
        "upstreams: [http://a:1]\ndispatch: merged\n",
        "trimtab.yaml:2: dispatch: got 'merged'; accepted: auto, merge or gate",
    ),
    (
        "a scalar for a section",
        "upstreams: [http://a:1]\nslo: fast\n",
        "trimtab.yaml:2: slo: got 'fast'; "
        "accepted: a mapping with the keys ttft_ms, tpot_ms, e2e_ms, queue_ms, quantile",
    ),
    (
        "a URL that is none",
        "upstreams:\n  - 127.0.0.1:8000\n",
        "trimtab.yaml:2: upstreams[0].url: must be a base URL like http://127.0.0.1:8000",
    ),
    (
        "the same upstream twice",
        "upstreams: [http://a:1, http://a:1]\n",
        "trimtab.yaml:1: upstreams: http://a:1 is listed twice",
    ),
    (
        "no upstreams",
        "slo: {ttft_ms: 5}\n",
        "trimtab.yaml: no upstream is given; add `upstreams: [http://127.0.0.1:8000]` or --upstream URL",
    ),
    (
        "nothing at all",
        "",
        "trimtab.yaml: no upstream is given; add `upstreams: [http://127.0.0.1:8000]` or --upstream URL",
    ),
    ("a list", "- http://a:1\n", "trimtab.yaml:1: must be a mapping of keys to values"),
    (
        "a key given twice",
        "upstreams: [http://a:1]\nslo: {}\nslo: {}\n",
        "trimtab.yaml:3: slo: is given twice, first at trimtab.yaml:2",
    ),
    (
        "an unset reference",
        "upstreams: ['http://${NOWHERE}:1']\n",
        "trimtab.yaml:1: upstreams[0]: environment variable NOWHERE is not set; set it, or write ${NOWHERE:-default}",
    ),
    (
        "broken YAML",
        "upstreams: [http://a:1\n",
        "trimtab.yaml:2:1: not valid YAML: expected ',' or ']', but got '<stream end>'",
    ),
    (
        "a short form beside pools",
        "pools:\n  - upstreams: [http://a:1]\nslo: {}\n",
        "trimtab.yaml:3: slo: belongs to a pool; put it under pools, or drop pools (trimtab.yaml:1)",
    ),
    (
        "an open admin port",
        "upstreams: [http://a:1]\nadmin: {host: 0.0.0.0}\n",
        "trimtab.yaml:2: admin: a token is required when host is 0.0.0.0, which other machines can reach",
    ),
    (
        "a short token",
        "upstreams: [http://a:1]\nadmin: {token: short}\n",
        "trimtab.yaml:2: admin.token: got a value; accepted: a secret of at least 16 characters",
    ),
    (
        "one address for two",
        "upstreams: [http://a:1]\nadmin: {port: 8080}\n",
        "trimtab.yaml: listen and admin both want 127.0.0.1:8080",
    ),
    (
        "an unknown default class",
        "upstreams: [http://a:1]\ndefault_class: vip\n",
        "trimtab.yaml:2: default_class: 'vip' is not one of the classes: interactive, default, batch",
    ),
    (
        "a pool without upstreams",
        "pools:\n  - name: a\n",
        "trimtab.yaml:2: pools[0].upstreams: is required: The inference servers.",
    ),
    (
        "an option list that is no mapping",
        "upstreams: [http://a:1]\nlaw_options: 5\n",
        "trimtab.yaml:2: law_options: got 5; accepted: a mapping",
    ),
]


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in SAYS], ids=[case[0] for case in SAYS])
def test_says_what_is_wrong_and_where(tmp_path: Path, text: str, message: str) -> None:
    said = complaint(tmp_path, text)
    assert message in (said, *said.splitlines())


def test_all_problems_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    said = complaint(tmp_path, "listen: {port: -1}\nupstreams: [http://a:1]\nadmin: {prt: 1}\nslo: {ttft_ms: 0}\n")
    assert [line.split(": ")[0] for line in said.splitlines()] == [f"trimtab.yaml:{line}" for line in (1, 3, 4)]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TRIMTAB_UPSTREAM": "http://a:1"}, "TRIMTAB_UPSTREAM: sets no known key; did you mean TRIMTAB_UPSTREAMS?"),
        ({"TRIMTAB_ADMIN__PRT": "1"}, "TRIMTAB_ADMIN__PRT: admin.prt: unknown key; did you mean port?"),
        (
            {"TRIMTAB_SLO__TTFT_MS": "fast"},
            "TRIMTAB_SLO__TTFT_MS: slo.ttft_ms: got 'fast'; accepted: a number from 0.001 to 86400000 (milliseconds)",
        ),
        (
            {"TRIMTAB_POOLS__CHAT__DEPTH": "2"},
            "TRIMTAB_POOLS__CHAT__DEPTH: pools.chat.depth: there is no pool 'chat'; known pools: default",
        ),
    ],
)
def test_names_the_environment_variable(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    assert complaint(tmp_path, FIVE_LINES, environ) == message


def test_asks_which_pool_a_short_variable_means(tmp_path: Path) -> None:
    said = complaint(tmp_path, TWO_POOLS, {"TRIMTAB_SLO__TTFT_MS": "5"})
    assert said == (
        "TRIMTAB_SLO__TTFT_MS: slo.ttft_ms: which pool? There are chat, embed-small; name one, as in pools.chat.slo"
    )


def test_names_the_flag(tmp_path: Path) -> None:
    said = complaint(tmp_path, FIVE_LINES, None, Override(("listen", "port"), 70_000, "--port"))
    assert said == "--port: listen.port: got 70000; accepted: a whole number from 0 to 65535"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file$"):
        load(tmp_path / "nowhere.yaml", environ={})


def test_a_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, environ={})


def test_a_law_for_trials_is_refused_with_what_to_use_instead(tmp_path: Path) -> None:
    said = complaint(tmp_path, "upstreams: [http://a:1]\nlaw: bandit\n")
    assert said.startswith("trimtab.yaml:2: law: 'bandit' explores on live requests")
    assert "experiment; accepted here: fixed, step, aimd, gradient, deadline" in said


@pytest.mark.parametrize("key", ["policy", "law"])
def test_options_nobody_understands_are_refused(tmp_path: Path, key: str) -> None:
    said = complaint(tmp_path, f"upstreams: [http://a:1]\n{key}_options: {{nonsense: 1}}\n")
    assert said.startswith(f"trimtab.yaml:2: {key}_options: ")
    assert "nonsense" in said


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [("law", "aimed", "aimd"), ("policy", "priorty", "priority"), ("wire", "openapi", "openai")],
)
def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, key: str, wrong: str, right: str) -> None:
    said = complaint(tmp_path, f"upstreams: [http://a:1]\n{key}: {wrong}\n")
    assert said.startswith(f"trimtab.yaml:2: {key}: got {wrong!r}; accepted: ")
    assert said.endswith(f"; did you mean {right}?")


def test_an_unknown_profile_lists_the_known_ones(tmp_path: Path) -> None:
    said = complaint(tmp_path, "upstreams:\n- url: http://a:1\n  profile: vlm\n")
    assert said.startswith("trimtab.yaml:3: upstreams[0].profile: got 'vlm'; accepted: anthropic, auto, ")
    assert said.endswith("; did you mean vllm?")


def test_python_objects_are_not_made(tmp_path: Path) -> None:
    said = complaint(tmp_path, "upstreams: [http://a:1]\npolicy: !!python/object/apply:os.getcwd []\n")
    assert said == "trimtab.yaml:2: policy: got a list; accepted: a name of letters, digits and . _ -"


def test_an_alias_within_itself_is_refused(tmp_path: Path) -> None:
    assert "alias" in complaint(tmp_path, "law_options: &a [*a]\nupstreams: [http://a:1]\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\x00\x01", "trimtab.yaml: not valid YAML: unacceptable character"),
        ("x: " + "[" * 5000, "trimtab.yaml: is nested too deep"),
    ],
)
def test_a_file_that_is_no_text_for_people_is_refused_in_one_line(tmp_path: Path, text: str, found: str) -> None:
    said = complaint(tmp_path, text)
    assert said.startswith(found)
    assert "\n" not in said.strip()


def test_learning_lengths_without_scikit_learn_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "upstreams: [http://a:1]\npredictor:\n  mode: learn\n"
    assert read(tmp_path, text).pools[0].predictor.mode == "learn"
    monkeypatch.setattr("proxy.config.names.sklearn_installed", lambda: False)
    found = complaint(tmp_path, text)
    assert found.startswith("trimtab.yaml:3: predictor.mode: got 'learn', which needs numpy and scikit-learn")
    assert "pip install 'trimtab[predictor]'" in found
    assert read(tmp_path, text.replace("learn", "history")).pools[0].predictor.mode == "history"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "min_samples: 3",
            "trimtab.yaml:3: predictor.min_samples: got 3; accepted: a whole number from 20 to 100000",
        ),
        ("uses: [guess]", "predictor.uses[0]: got 'guess'; accepted: order, admit, route or hint"),
        ("mode: maybe", "predictor.mode: got 'maybe'; accepted: auto, off, history or learn"),
        ("retrain_s: 1", "predictor.retrain_s: got 1; accepted: a number from 10 to 604800 (seconds)"),
    ],
)
def test_a_predictor_out_of_range_is_told_the_range(tmp_path: Path, line: str, found: str) -> None:
    assert found in complaint(tmp_path, f"upstreams: [http://a:1]\npredictor:\n  {line}\n")
