"""The rules of identity, attaching, sharing and unsubscribing: the rows of `docs/reference/rules.md`.

Sources: UM Universal Messaging; QPID Apache Qpid (Broker-J, the JMS client); AMQ ActiveMQ and Artemis; WLS
WebLogic; RDS the mechanics of a robust durable subscriber; JM Jakarta Messaging 3.1 with the section, JD its
javadoc; TCK its compatibility kit. Where they disagree a row says whose word counts.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One rule."""

    id: str
    situation: str
    outcome: str
    source: str


_DETAILS_DIFFER = (
    '`SubscriptionDiffers`, with the number of messages that wait; with `on_change="alter"` selector and '
    '`no_local` change and what waits is kept; with `on_change="replace"`, and always in `kafkadur.jms`, '
    "deleted and created anew"
)

#: Title of a group, and its rules.
GROUPS: dict[str, tuple[Rule, ...]] = {
    "Exclusive durable subscriptions": (
        Rule("U1", "the connection has no client id", "`IllegalState`", "JD, QPID"),
        Rule("U2", "nobody knows the client id and name", "it is created, then consumed", "JM 8.3.3"),
        Rule(
            "U3",
            "it exists, nobody is attached, details are equal",
            "attached; what waits is kept",
            "JM 8.3.3, UM",
        ),
        Rule(
            "U4",
            "it exists, nobody is attached, topic, selector or `no_local` differ",
            _DETAILS_DIFFER,
            "JM 8.3.3, QPID, WLS",
        ),
        Rule("U5", "somebody is attached", "`SubscriptionActive`, which names the holder", "JM 8.3.3"),
        Rule(
            "U6",
            "the key is that of a shared one, even without consumers",
            "`InvalidSubscriptionSharing`",
            "JM 8.3.3",
        ),
        Rule(
            "U7",
            "`no_local`",
            "messages of the same connection, and of any with the same client id, never enter it",
            "JM 8.3.3",
        ),
        Rule(
            "U8",
            "the topic is one of kafkadur's own, such as the journal",
            "`InvalidDestination`",
            "JM 4.2.7",
        ),
        Rule("U9", "its consumer is closed", "it stays and accumulates", "JM 4.2.2"),
        Rule("U10", "names", "letters, digits, `_`, `.` and `-`, 128 characters and more", "JM 4.2.4"),
    ),
    "Shared durable subscriptions": (
        Rule("S1", "nobody knows client id (or none) and name", "created by its first consumer", "JM 8.3.4"),
        Rule("S2", "details are equal", "one more consumer; each message goes to exactly one", "JM 8.3.4"),
        Rule(
            "S3",
            "details differ, nobody is attached",
            _DETAILS_DIFFER,
            "JM 8.3.4",
        ),
        Rule("S4", "details differ, somebody is attached", "`SubscriptionActive`", "JM 8.3.4, WLS"),
        Rule(
            "S5",
            "the key is that of an exclusive one, even without a consumer",
            "`InvalidSubscriptionSharing`",
            "JM 8.3.4",
        ),
        Rule("S6", "the same name with client id x, and without one", "two subscriptions", "JM 8.3.4, QPID"),
        Rule("S7", "who gets the next message", "in turn, beginning with who attached first", "AMQ, TCK"),
        Rule(
            "S8",
            "a consumer dies with messages in its hands",
            "they come again, one attempt is counted",
            "AMQ, JM 9.1",
        ),
        Rule("S9", "one consumer asks", "others that have room are served, too", "AMQ"),
        Rule("S10", "the last consumer closes", "it stays, with what waits", "JM 8.3.4"),
    ),
    "Shared non-durable subscriptions": (
        Rule("N1", "its first consumer", "created", "JM 8.3.2"),
        Rule("N2", "the same details", "joined", "JM 8.3.2"),
        Rule("N3", "other details, somebody is attached", "`SubscriptionActive`", "JM 8.3.2"),
        Rule("N4", "the last consumer closes", "deleted, with what was not delivered", "JM 8.3.2, WLS"),
        Rule("N5", "the name of a durable one", "two subscriptions; each gets a copy", "JM 8.3.2, QPID"),
    ),
    "Exclusive non-durable subscriptions": (
        Rule("V1", "each consumer", "a subscription of its own without a name", "JM 8.3.1"),
        Rule("V2", "`no_local`", "leaves out what the same connection sent, nothing else", "JM 8.3.1"),
        Rule("V3", "it is closed", "deleted, with what was not delivered", "JM 8.3.1"),
    ),
    "Unsubscribing": (
        Rule("X1", "it exists, nobody is attached", "deleted", "JD, QPID"),
        Rule("X2", "unknown name, other client id, other policy", "`InvalidDestination`", "JD, QPID, WLS"),
        Rule(
            "X3", "somebody is attached anywhere", "`SubscriptionActive`; nothing is deleted", "JM 8.3.3, WLS"
        ),
        Rule(
            "X4",
            "an application still holds a message of it",
            "`IllegalState`; nothing is deleted",
            "JM 8.3.3, 8.3.4",
        ),
        Rule("X5", "it is not durable", "`InvalidDestination`", "JD"),
        Rule("X6", "a topic, or a topic member, is named", "deleted there only", "WLS"),
        Rule(
            "X7",
            "the client id is unrestricted, and no topic (mode `weblogic`) or topic member is named",
            "`InvalidDestination`",
            "WLS",
        ),
    ),
    "Client ids": (
        Rule(
            "C1",
            "restricted (the default), and another live connection has it",
            "`InvalidClientId`, which names the holder",
            "JM 6.1.2, JD, WLS",
        ),
        Rule("C2", "unrestricted", "any number of connections have it", "WLS"),
        Rule(
            "C3",
            "the same client id with the other policy",
            "subscriptions of its own; only it can unsubscribe them",
            "WLS",
        ),
        Rule(
            "C4",
            "it is set after anything else was done, or when it was given already",
            "`IllegalState`",
            "JM 6.1.2",
        ),
    ),
    "WebLogic mode": (
        Rule("P1", "what identifies a durable one", "client id, its policy and the name", "WLS"),
        Rule(
            "P2",
            "what identifies a non-durable one",
            "client id and policy; without a client id it is not shared",
            "WLS",
        ),
        Rule("P3", "an exclusive one is attached", "any newcomer: `InvalidSubscriptionSharing`", "WLS"),
        Rule("P4", "a shared one is attached", "an exclusive newcomer: `InvalidSubscriptionSharing`", "WLS"),
        Rule(
            "P5",
            "a shared one is attached, the newcomer's details differ, `no_local` included",
            "`InvalidSubscriptionSharing`",
            "WLS",
        ),
        Rule("P6", "the same, not durable", "a subscription of its own", "WLS"),
        Rule(
            "P7",
            "nobody is attached, the newcomer has another policy",
            "the policy changes; what waits is kept",
            "WLS",
        ),
        Rule(
            "P8",
            "nobody is attached, details differ",
            _DETAILS_DIFFER,
            "WLS",
        ),
    ),
    "One copy": (
        Rule("O1", "one copy per instance", "every instance gets every message: a key each", "WLS"),
        Rule(
            "O2",
            "one copy per application",
            "unrestricted client id, shared, the same name: the application gets one copy",
            "WLS",
        ),
    ),
    "Distributed topics": (
        Rule("M1", "who shares a subscription", "consumers on the same topic member", "WLS"),
        Rule("M2", "the same key on several topic members", "a subscription each", "WLS"),
        Rule(
            "M3",
            "a topic member is down",
            "its subscription cannot be used; who unsubscribes leaves it behind and is told (`Unreached`)",
            "WLS",
        ),
    ),
    "Monitoring": (
        Rule(
            "A1",
            "how an abandoned one is found",
            "the last verdict, since when nobody is attached, what waits: `kafkadur sub abandoned`",
            "WLS",
        ),
        Rule("A2", "how it goes", "deleted on request, or when it is unsubscribed again", "WLS"),
        Rule("A3", "names for tools", "`client_name`; unrestricted `client_name@topic@namespace`", "WLS"),
        Rule("A4", "non-durable ones", "are not listed; their consumers show themselves", "WLS"),
        Rule(
            "A5",
            "attributes",
            "client id, policy, name, selector, `no_local`, active; messages and bytes current and pending",
            "WLS",
        ),
    ),
    "Acknowledging": (
        Rule("K1", "a session acknowledges", "all that was delivered by it", "JM 6.2.10"),
        Rule(
            "K2",
            "automatic acknowledgement",
            "when `receive` returns the message, or the listener returns",
            "JM 6.2.10, 6.2.11",
        ),
        Rule(
            "K3",
            "a session recovers",
            "what is not acknowledged comes again, marked, counted",
            "JM 6.2.10, JD",
        ),
        Rule("K4", "the delivery count", "1 at first; what is marked redelivered has 2 or more", "JM 3.5.11"),
        Rule("K5", "a consumer is closed", "nothing is acknowledged; that is possible later", "JM 8.8"),
        Rule("K6", "a session is closed", "nothing is acknowledged", "JM 6.2.15"),
        Rule("K7", "what is acknowledged", "never comes again", "JM 6.2.11"),
    ),
    "Catching up": (
        Rule(
            "B1",
            "at the start, and after a break",
            "pulled until nothing is left, then armed, pulled once more, and live without a repeat",
            "RDS",
        ),
        Rule("B2", "more comes than is taken", "it falls behind, and pulls again", "RDS"),
    ),
    "Limits and conversion": (
        Rule("L1", "consumers of a shared one", "any number, unless it has a limit", "AMQ"),
        Rule("L2", "the limit is reached", "`ResourceLimit`, which names the consumers", "JM 10.3"),
        Rule(
            "L3",
            "another type is asked for, nobody is attached",
            "refused; with `allow_conversion`, and equal details, it changes and what waits is kept",
            "JM forbids, AMQ and WLS allow",
        ),
        Rule(
            "C5", "a newcomer where all places are taken", "refused; nobody attached is put out for it", "AMQ"
        ),
    ),
    "Where the sources disagree": (
        Rule(
            "D1",
            "whether an exclusive subscription may become a shared one, and back",
            "no; with `allow_conversion`, or in the mode `weblogic`, while nobody is attached",
            "JM against AMQ and WLS",
        ),
        Rule(
            "D2",
            "what identifies a shared non-durable one",
            "its name and the client id; in the mode `weblogic` client id, policy and details",
            "JM against WLS",
        ),
        Rule(
            "D3",
            "an exclusive one is attached, a newcomer with the same key (mode `weblogic`)",
            "`InvalidSubscriptionSharing`, not a subscription of its own",
            "WLS against itself",
        ),
        Rule(
            "D4",
            "`no_local` on a shared one",
            "refused with `IllegalState`; in the mode `weblogic` it is one of the details",
            "JM against QPID and WLS",
        ),
        Rule(
            "D5",
            "a newcomer to an exclusive one that somebody is attached to, in any process",
            "refused as the broker does it; the holder stays and the subscription is untouched",
            "QPID's description against its broker",
        ),
        Rule("D6", "a client id that another connection has", "`InvalidClientId`", "JM against JD"),
        Rule(
            "D7",
            "how tools call a subscription",
            "as WebLogic's JMSDurableSubscriberRuntimeMBean",
            "WLS against itself",
        ),
        Rule(
            "D8",
            "the type `shared-queued`",
            "another name of `shared`, with a warning that it is going",
            "UM against itself",
        ),
        Rule(
            "D9",
            "what one acknowledgement covers",
            "one message (the deliveries, INDIVIDUAL), or all of the session (CLIENT)",
            "UM against JM",
        ),
    ),
}
