"""What is matched is what a server may find in the target, however lenient it is."""

from __future__ import annotations

import pytest

from proxy.http.target import has_dot_segments, is_authority, matched_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/admin?x=//", "/admin"),
        ("//admin", "/admin"),
        ("/v1///models", "/v1/models"),
        ("/%61dmin", "/admin"),
        ("/%2Fadmin", "/admin"),
        ("/admin;x=1/users;y", "/admin/users"),
        ("/v1/models/org%2Fname", "/v1/models/org/name"),
        ("*", "*"),
    ],
)
def test_a_path_is_matched_as_a_lenient_server_would_read_it(target: str, path: str) -> None:
    assert matched_path(target) == path


@pytest.mark.parametrize("target", ["/..", "/a/./b", "/%2e%2e/x", "/a/..;p/x", "/a\\..\\x", "/a%2f..", "/a/%2e"])
def test_dot_segments_are_found_in_every_guise(target: str) -> None:
    assert has_dot_segments(target)


@pytest.mark.parametrize("target", ["/", "/a.b/..c/...", "/a?b=/../c", "/.well-known/x", "/%252e%252e/x"])
def test_dots_in_names_are_no_segments(target: str) -> None:
    assert not has_dot_segments(target)


@pytest.mark.parametrize("host", ["a", "a:80", "a:", "", "127.0.0.1:8080", "[::1]", "[::1]:80", "x_y.z", "%41"])
def test_hosts(host: str) -> None:
    assert is_authority(host)


@pytest.mark.parametrize("host", ["[::1", "[]", "[::1]x", "a:b", "a:65536", "u@a", "a/b", "a b", "a:1:2", "é", "%4"])
def test_what_is_no_host(host: str) -> None:
    assert not is_authority(host)
