"""What is the bundled worker, or a vLLM server, doing?"""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders import timeseries

from grafana.panels import Q, base, lines, quantile, rate, row, stacked

__all__ = ["build"]


def build() -> d.Dashboard:
    """Return the dashboard."""
    board = base(
        "Trimtab / Worker",
        "trimtab-worker",
        "The bundled worker; the vllm: panels also fit vLLM servers.",
        worker=True,
    )
    where = 'model_name=~"$model_name"'

    def share(part: str, whole: str) -> str:
        return f"{rate(part, 'model_name', where)} / {rate(whole, 'model_name', where)}"

    board.with_row(row("Load"))
    board.with_panel(
        lines(
            "Sequences",
            "Running in the batch, and waiting to be scheduled.",
            "none",
            Q(f"vllm:num_requests_running{{{where}}}", "{{model_name}} running"),
            Q(f"vllm:num_requests_waiting{{{where}}}", "{{model_name}} waiting"),
        )
    )
    board.with_panel(
        lines(
            "Tokens",
            "Tokens per second.",
            "none",
            Q(rate("vllm:prompt_tokens_total", "model_name", where), "{{model_name}} prompt"),
            Q(rate("vllm:generation_tokens_total", "model_name", where), "{{model_name}} generated"),
        )
    )
    board.with_panel(
        stacked(
            "Finished",
            "Choices ended, by reason, per second.",
            "ops",
            Q(rate("vllm:request_success_total", "finished_reason", where), "{{finished_reason}}"),
        )
    )
    board.with_row(row("Latency"))
    for title, metric, what in (
        ("Time to first token", "vllm:time_to_first_token_seconds", "Arrival to the first token, at the worker."),
        ("Between tokens", "vllm:inter_token_latency_seconds", "Between two tokens of a choice."),
        ("End to end", "vllm:e2e_request_latency_seconds", "Arrival to the last token, at the worker."),
    ):
        board.with_panel(
            lines(
                title,
                what,
                "s",
                *(
                    Q(quantile(q, metric, "model_name", where), f"{{{{model_name}}}} p{q * 100:g}")
                    for q in (0.5, 0.95, 0.99)
                ),
            )
        )
    board.with_row(row("Memory and batching"))
    board.with_panel(
        lines(
            "KV cache",
            "Share of KV blocks that sequences own.",
            "percentunit",
            Q(f"vllm:kv_cache_usage_perc{{{where}}}", "{{model_name}}"),
            top=1.0,
        )
    )
    board.with_panel(
        stacked(
            "KV blocks",
            "Blocks by use: owned by sequences, cached for prefix hits, free.",
            "none",
            *(
                Q(f"trimtab_worker_kv_blocks_{use}{{{where}}}", f"{{{{model_name}}}} {use}")
                for use in ("owned", "cached", "free")
            ),
        )
    )
    board.with_panel(
        lines(
            "Prefix cache hits",
            "Share of looked-up prompt tokens that were cached.",
            "percentunit",
            Q(share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"), "{{model_name}}"),
            top=1.0,
        )
    )
    board.with_panel(
        lines(
            "Step time",
            "Mean seconds per engine step.",
            "s",
            Q(share("trimtab_worker_step_seconds_total", "trimtab_worker_steps_total"), "{{model_name}}"),
        )
    )
    board.with_panel(
        lines(
            "Preemptions",
            "Sequences put back to free their blocks, per second.",
            "ops",
            Q(rate("vllm:num_preemptions_total", "model_name", where), "{{model_name}}"),
            at_least=1.0,
        )
    )
    board.with_panel(
        lines(
            "Stalls",
            "Times work waited and nothing could run, per second.",
            "ops",
            Q(rate("trimtab_worker_stalls_total", "model_name", where), "{{model_name}}"),
            at_least=1.0,
        )
    )
    board.with_row(row("GPU, where there is one"))
    for panel in _gpu(where):
        board.with_panel(panel)
    return board


def _gpu(where: str) -> Iterator[timeseries.Panel]:
    yield lines(
        "GPU utilisation",
        "Share of time in which a kernel ran on the worker's GPU. A full GPU may still be used badly: see the batch.",
        "percentunit",
        Q(f"trimtab_worker_gpu_utilization_ratio{{{where}}}", "{{model_name}}"),
        top=1.0,
    )
    yield lines(
        "GPU memory",
        "Memory in use on the GPU, by everybody; dashed, all there is.",
        "bytes",
        Q(f"trimtab_worker_gpu_memory_used_bytes{{{where}}}", "{{model_name}}"),
        Q(f"trimtab_worker_gpu_memory_total_bytes{{{where}}}", "{{model_name}} total"),
        dashed="total$",
    )
    yield lines(
        "GPU power",
        "What the GPU draws.",
        "watt",
        Q(f"trimtab_worker_gpu_power_watts{{{where}}}", "{{model_name}}"),
        width=4,
    )
    yield lines(
        "GPU temperature",
        "On the chip.",
        "celsius",
        Q(f"trimtab_worker_gpu_temperature_celsius{{{where}}}", "{{model_name}}"),
        width=4,
    )
