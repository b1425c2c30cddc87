"""The configuration that the journal's topic needs so that it loses no record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Of a topic that is created.
TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(1024 * 1024),
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "LogAppendTime",
}


def weaknesses(config: Mapping[str, str], replicas: int) -> list[str]:
    """Return the settings by which the journal topic could lose records."""
    problems: list[str] = []
    if "compact" not in config.get("cleanup.policy", ""):
        problems.append("cleanup.policy must be compact")
    if config.get("unclean.leader.election.enable") == "true":
        problems.append("unclean.leader.election.enable must be false")
    if replicas > 1 and int(config.get("min.insync.replicas") or 1) < 2:  # noqa: PLR2004 - one copy is no safety
        problems.append("min.insync.replicas must be at least 2 when the topic is replicated")
    return problems
