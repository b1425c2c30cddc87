"""Which policy and which dispatcher a subscription type has."""

from __future__ import annotations

from kafkadur.consumer.chunk import Owner
from kafkadur.consumer.dispatcher import Dispatcher
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.policy.key_dispatcher import KeyDispatcher
from kafkadur.consumer.policy.keyed import KeyedPolicy
from kafkadur.consumer.policy.ordered import OrderedPolicy, PriorityPolicy
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.policy.serial import PartitionTurnsPolicy, SerialPolicy
from kafkadur.consumer.policy.shared import SharedPolicy
from kafkadur.consumer.state import State
from kafkadur_sharing.definition import Definition, SubscriptionType

_POLICIES: dict[SubscriptionType, type[Policy]] = {
    SubscriptionType.EXCLUSIVE: OrderedPolicy,
    SubscriptionType.PRIORITY: PriorityPolicy,
    SubscriptionType.SERIAL: SerialPolicy,
    SubscriptionType.SHARED: SharedPolicy,
    SubscriptionType.KEY_ORDERED: KeyedPolicy,
}


def policy_of(definition: Definition) -> type[Policy]:
    """Return the policy of the members of a subscription."""
    if definition.type is SubscriptionType.SERIAL and definition.scope == "partition":
        return PartitionTurnsPolicy
    return _POLICIES[definition.type]


def dispatcher_of(state: State, policy: Policy, lag: Lag, owner: Owner) -> Dispatcher:
    """Return the dispatcher of a member, which is the `owner` of chunks."""
    if isinstance(policy, KeyedPolicy):
        return KeyDispatcher(state, policy=policy, lag=lag, owner=owner)
    return Dispatcher(state, policy=policy, lag=lag)
