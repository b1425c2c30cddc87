"""Somebody who takes stretches at once, and whose answers can be lost."""

from kafkadur.stack import as_administrator
from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.interface import MemberKind
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.redis.member_session import MemberSession
from tests.integration.coordinators.world import SESSION_MS, TOPIC_ID, World

#: Seconds in which an answer comes, or is lost.
LOST_S = 1.0


class Deaf:
    """Somebody who claims and whose answers can be lost; `kind`: 'whole' or 'claims'."""

    def __init__(self, world: World, kind: MemberKind) -> None:
        #: answers still to come before one is lost; -1: none is lost
        self._left = -1
        world.ears.listen(world.address.channel("spark"))
        self.coordinator = RedisCoordinator(
            as_administrator(world.url),
            clock=world.clock,
            timeout=LOST_S,
            recorder=lambda *_: self._answered(),
        )
        session = MemberSession(
            self.coordinator, world.address, subscription_id=world.id, state=TOPIC_ID, member="spark"
        )
        session.attach(name="spark", session_ms=SESSION_MS, version=world.version, most=0, kind=kind)
        self.claims = Claims(session)

    def lose(self, after: int = 0) -> None:
        """Lose the answer after so many; the server does what it was asked for."""
        self._left = after + 1
        self._answered()

    def _answered(self) -> None:
        self._left = max(self._left - 1, -1)
        if self._left == 0:
            # not through command(): this is the one command that is not answered
            link = self.coordinator._servers.of("")  # noqa: SLF001
            link._connection.send_command("CLIENT", "REPLY", "SKIP")  # noqa: SLF001
            self._left = -1
