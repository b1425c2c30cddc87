import random
import sys
import traceback

from kafkadur.stack import embedded
from kafkadur_sharing.definition import SubscriptionType
from tests.coordinators.sim import Sim
from tests.coordinators.world import World


def once(url, seed, own):
    rnd = random.Random(seed)
    parts = rnd.choice([1, 1, 2, 3, 5])
    w = World(url, type_="serial" if own else "shared", partitions=parts)
    w.policy = (rnd.choice([0, 0, 1000]), 0, 0, 0, 1, int(own))
    w.create()
    sim = Sim(w)
    how = {"type": SubscriptionType.SERIAL, "scope": "partition"} if own else {}
    windows = rnd.choice([[1], [1, 2], [4], [3, 8], [100], [1, 100]])
    k = 0

    def join():
        nonlocal k
        k += 1
        sim.node(f"n{k}", window=rnd.choice(windows), **how)

    taken, acked, log, paused = {}, set(), [], False
    dead = []

    def take(node):
        one = node.take()
        if one is None:
            return False
        for other in sim.nodes:
            if other is not node and any(d.partition * 1000 + d.offset == one for d in other.hands):
                raise AssertionError(f"{one} in two hands: {node.name} {other.name}")
        if own:
            for other in sim.nodes:
                if other is not node and any(d.partition == one // 1000 for d in other.hands):
                    raise AssertionError(f"two holders of {one // 1000}")
        if one in acked and not dead:
            raise AssertionError(f"{one} again")
        if paused and False:
            raise AssertionError
        if len(node.hands) > node.member.window:
            raise AssertionError("window")
        taken[one] = node.name
        return True

    def ack(node):
        i = rnd.randrange(len(node.hands))
        d = node.hands[i]
        acked.add(d.partition * 1000 + d.offset)
        node.ack(i)

    def roll(node):
        i = rnd.randrange(len(node.hands))
        d = node.hands.pop(i)
        d.release_nowait() if rnd.random() < 0.5 else d.rollback_nowait() if hasattr(
            d, "rollback_nowait"
        ) else d.release_nowait()
        node.member.poke()

    join()
    for step in range(120):
        op = rnd.random()
        node = rnd.choice(sim.nodes)
        what = ""
        if op < 0.25:
            p = rnd.randrange(parts)
            n = rnd.choice([1, 1, 1, 2, 3, 10])
            sim.write(p, n)
            what = f"write {p} {n}"
        elif op < 0.5:
            what = f"take {node.name} {[take(node) for _ in range(rnd.choice([1, 1, 5]))]}"
        elif op < 0.7:
            if node.hands:
                ack(node)
            what = f"ack {node.name}"
        elif op < 0.74:
            if node.hands:
                roll(node)
            what = f"roll {node.name}"
        elif op < 0.77:
            if len(sim.nodes) < 5:
                join()
            what = "join"
        elif op < 0.79:
            if len(sim.nodes) > 1:
                lost = list(node.hands)
                node.hands.clear()
                sim.leave(node)
                what = f"leave {node.name}"
        elif op < 0.80 and len(sim.nodes) > 1:
            sim.nodes.remove(node)
            node.stopped = True
            w.ears.forget(node.channel)
            dead.append(node)
            what = f"kill {node.name}"
        elif op < 0.81 and not own:
            node.member.rest()
            what = f"rest {node.name}"
        elif op < 0.83 and not own:
            node.member.wake_up()
            what = f"wake {node.name}"
        elif op < 0.84:
            paused = not paused
            w.run("pause", int(paused))
            sim.deliver_wakes()
            what = f"pause {paused}"
        elif op < 0.86:
            sim.run(rnd.choice([0.2, 1, 6]))
            what = "time"
        elif op < 0.9:
            c = rnd.choice(sim.nodes)
            c.read()
            c.exchange()
            what = f"one {c.name}"
        elif op < 0.93:
            rnd.choice(sim.nodes).read()
            what = "read"
        else:
            rnd.shuffle(sim.nodes)
            c = sim.settle(100)
            what = f"settle {c}"
            if c < 0 or c > 90:
                raise AssertionError(
                    f"busy {c} {what} "
                    + repr(log[-5:])
                    + repr(
                        [
                            (
                                n.name,
                                [(d.partition, d.offset) for d in n.hands],
                                [
                                    (
                                        l.partition,
                                        l.start,
                                        l.end,
                                        l.fill,
                                        l.lane,
                                        l.ahead,
                                        n.member._is_unread(l),
                                    )
                                    for l in n.member._leases.values()
                                ],
                                {p: (g.standing.name, g.frozen) for p, g in n.member._groups.items()},
                            )
                            for n in sim.nodes
                        ]
                    )
                )
        log.append(what)
    if paused:
        paused = False
        w.run("pause", 0)
        sim.deliver_wakes()
    for node in sim.nodes:
        node.member.wake_up()
    if dead:
        sim.run(14)
    total = {p * 1000 + o for p, e in sim.ends.items() for o in range(e)}
    # one member keeps what it has; others work
    slow = rnd.choice(sim.nodes) if len(sim.nodes) > 1 and rnd.random() < 0.5 else None
    if slow is not None:
        while take(slow):
            pass
        if len(slow.hands) < slow.member.window:
            slow = None

    def finish(limit, who, want):
        begin = sim.now()
        while not want() <= acked:
            c = sim.settle(300)
            if c < 0:
                for n in sim.nodes:
                    e = n.member
                    print(
                        n.name,
                        e.window,
                        e._free_credit,
                        e._watches,
                        e._force,
                        e._to_return(),
                        e._came,
                        e._touch,
                        e._orphaned,
                        e._asked_back,
                        [
                            (
                                l.token,
                                l.partition,
                                l.start,
                                l.end,
                                l.fill,
                                list(l.stretch),
                                l.kind if hasattr(l, "kind") else l.ahead,
                                l.withdrawn,
                                l.open,
                                l.gaps,
                            )
                            for l in e._leases.values()
                        ],
                        {p: (f.position, f.reported, f.kept_from, f.unread) for p, f in e._feeds.items()},
                    )
                    ex = e.build(sim.now())
                    print(ex)
                    r = n.session.exchange(ex) if ex else None
                    print(r)
                    ex and e.apply(r, sim.now())
                print([(x.base, x.next, x.avail, x.runs) for x in (w.partition(p) for p in range(parts))])
                raise AssertionError(f"busy at the end {c}")
            for node in who:
                while take(node):
                    pass
                while node.hands:
                    ack(node)
                    begin = sim.now()
            sim.run(0.05)
            if sim.now() - begin > limit:
                if len(sys.argv) > 5:
                    import msgpack

                    print(
                        "watchers",
                        w.coordinator.command("HGETALL", w.address.fixed()[4]),
                        "unwatched",
                        msgpack.unpackb(
                            w.coordinator.command("HGET", w.address.fixed()[0], "unwatched") or b"\x90"
                        ),
                        "dead",
                        [d.name for d in dead],
                        {
                            n.name: (n.member._home, n.member._role, n.member._states.get(3))
                            for n in sim.nodes
                        },
                    )
                    print(log[-30:])
                raise AssertionError(
                    f"missing after {limit}: {sorted(want() - acked)[:10]} slow={slow and slow.name} "
                    + repr(
                        {
                            n.name: (n.member.statistics(), n.member._watches, n.member.window)
                            for n in sim.nodes
                        }
                    )
                    + repr([w.partition(p) for p in range(parts)])
                    + repr(w.leases())
                )

    if slow is not None:
        mine = lambda: {d.partition * 1000 + d.offset for d in slow.hands}
        held = {d.partition for d in slow.hands}
        finish(
            2.0,
            [n for n in sim.nodes if n is not slow],
            lambda: {x for x in total if not own or x // 1000 not in held} - mine(),
        )
    finish(2.0, sim.nodes, lambda: total)
    # in a trickle
    for _ in range(6):
        p = rnd.randrange(parts)
        sim.write(p)
        total.add(p * 1000 + sim.ends[p] - 1)
        finish(1.0, sim.nodes, lambda: total)
    c = sum(n.exchanges for n in sim.nodes)
    sim.run(4)
    c = sum(n.exchanges for n in sim.nodes) - c
    if c > 6 * len(sim.nodes):
        raise AssertionError(f"idle exchanges {c}")
    for n in sim.nodes:
        if len(n.member._leases) > 40:
            raise AssertionError("leases")
    v = [w.partition(p) for p in range(parts)]
    for x in v:
        assert x.floor == sim.ends[x.partition] or True
    w.close()


with embedded(kafka=False) as stack:
    own = sys.argv[1] == "own"
    bad = 0
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        try:
            once(stack.valkey.url, seed, own)
        except Exception as e:
            bad += 1
            print(seed, type(e).__name__, str(e)[: int(sys.argv[4]) if len(sys.argv) > 4 else 300])
            if not isinstance(e, AssertionError):
                traceback.print_exc(limit=-3)
            if bad >= 8:
                break
    print("done", bad)
