"""Counters of requests, in Prometheus' text form, under the names that Kubernetes' API server uses."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["Metrics"]

BUCKETS = (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


class Metrics:
    """Request counts and durations; gauges are read when the page is asked for."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, str, int], int] = {}
        self._durations: dict[tuple[str, str, str], list[float]] = {}
        self.dropped = 0
        self.in_flight = {"mutating": 0, "readOnly": 0}
        self.watches: dict[tuple[str, str], int] = {}

    def observe(self, verb: str, group: str, resource: str, code: int, seconds: float) -> None:
        """Count one finished request. Watches are counted, but have no duration."""
        key = (verb, group, resource, code)
        self._requests[key] = self._requests.get(key, 0) + 1
        if verb != "watch":
            found = self._durations.get(key[:3])
            if found is None:
                found = self._durations[key[:3]] = [0.0] * (len(BUCKETS) + 2)
            found[bisect_left(BUCKETS, seconds)] += 1
            found[-1] += seconds

    def render(self, objects: dict[str, int], revision: int) -> str:
        """The page at /metrics. `objects` counts stored objects by resource."""
        lines = [
            "# HELP apiserver_request_total Counter of requests by verb, group, resource and code.",
            "# TYPE apiserver_request_total counter",
        ]
        for (verb, group, resource, code), count in sorted(self._requests.items()):
            labels = f'code="{code}",group="{group}",resource="{resource}",verb="{verb.upper()}"'
            lines.append(f"apiserver_request_total{{{labels}}} {count}")
        lines += [
            "# HELP apiserver_request_duration_seconds Response latency by verb, group and resource.",
            "# TYPE apiserver_request_duration_seconds histogram",
        ]
        for (verb, group, resource), times in sorted(self._durations.items()):
            labels = f'group="{group}",resource="{resource}",verb="{verb.upper()}"'
            total = 0.0
            for bound, number in zip((*BUCKETS, None), times[:-1], strict=True):
                total += number
                le = "+Inf" if bound is None else f"{bound:g}"
                lines.append(f'apiserver_request_duration_seconds_bucket{{{labels},le="{le}"}} {total:g}')
            lines.append(f"apiserver_request_duration_seconds_sum{{{labels}}} {times[-1]:.6f}")
            lines.append(f"apiserver_request_duration_seconds_count{{{labels}}} {total:g}")
        lines += [
            "# HELP apiserver_current_inflight_requests Requests that are being answered now.",
            "# TYPE apiserver_current_inflight_requests gauge",
        ]
        lines += [f'apiserver_current_inflight_requests{{request_kind="{k}"}} {n}' for k, n in self.in_flight.items()]
        lines += [
            "# HELP apiserver_dropped_requests_total Requests that were refused with 429.",
            "# TYPE apiserver_dropped_requests_total counter",
            f"apiserver_dropped_requests_total {self.dropped}",
            "# HELP apiserver_longrunning_requests Watches that are open now.",
            "# TYPE apiserver_longrunning_requests gauge",
        ]
        for (group, resource), count in sorted(self.watches.items()):
            labels = f'group="{group}",resource="{resource}",verb="WATCH"'
            lines.append(f"apiserver_longrunning_requests{{{labels}}} {count}")
        lines += [
            "# HELP apiserver_storage_objects Stored objects by resource.",
            "# TYPE apiserver_storage_objects gauge",
        ]
        lines += [f'apiserver_storage_objects{{resource="{name}"}} {count}' for name, count in sorted(objects.items())]
        lines += [
            "# HELP bayplan_storage_revision The newest revision of the store.",
            "# TYPE bayplan_storage_revision gauge",
            f"bayplan_storage_revision {revision}",
        ]
        return "\n".join(lines) + "\n"
