-------------------------------- MODULE Claims --------------------------------
(* A shared subscription around a restart: leases end, no new lease is granted in the grace period, and a member that attaches
   again leases its messages in flight again ("claims" them). Lane.tla specifies this for lanes.

   Modelled: lua/reclaim-7+3.lua, reincarnate-7.lua, exchange-7+3.lua (note_back), kafkadur/consumer/losses.py.
   An exchange is one step, including its reply, and grants one lease. Granted messages are in flight at once (Shared.tla
   separates these steps). The reply to a claim may be lost; then the claim is repeated. A fault is another server with an older
   copy, or an empty server that is rebuilt from the beginning. A member session may end without the member noticing: it keeps
   its messages in flight, and claims them as well when it attaches again.
   Not modelled: time, several partitions, credit, attempts that have a limit. *)
EXTENDS Partition, Sequences, TLC
CONSTANTS M, Most, MaxEx, MaxAtt, MaxRoll, MaxEnd, MaxFail
VARIABLES s,    \* Redis: [p, inc, mem (attached), grace, awaited, claims [t, inc, tok]]; was (awaited at first), timed (grace period expired)
          old,  \* a copy of its state
          l,    \* members: hands (in flight), acks, rbs (rollbacks): <<token, offset>>; kept: the claims to make [inc, t, hands, acks]
          h, n
vars == <<s,old,l,h,n>>
Perms == Permutations(M)
S0 == [p |-> [P0 EXCEPT !.avail = N], inc |-> 1, mem |-> {}, grace |-> FALSE, awaited |-> {}, claims |-> {}, was |-> {}, timed |-> FALSE]
Idle == [on |-> FALSE, inc |-> 0, have |-> 0, hands |-> {}, acks |-> {}, rbs |-> {}, kept |-> {}]
Init == /\ s = S0 /\ old = S0 /\ l = [m \in M |-> Idle] /\ h = [done |-> {}, cR |-> {}, disp |-> {}, bad |-> {}]
        /\ n = [ex |-> 0, att |-> 0, roll |-> 0, end |-> 0, fail |-> 0]
Offs(V) == {v[2] : v \in V}
Of1(V,t) == {v[2] : v \in {v \in V : v[1] = t}}
--------------------------------------------------------------------------------
Back(x,m) == IF x.awaited = {} THEN x ELSE [x EXCEPT !.awaited = @ \ {m}, !.grace = @ /\ x.awaited # {m}]
Attach(m) == /\ ~l[m].on /\ n.att < MaxAtt /\ n' = [n EXCEPT !.att = @ + 1]
             /\ LET x == [s EXCEPT !.mem = @ \cup {m}, !.p = Orphaned(@,m,2)] IN
                s' = IF Bad("back_at_attach") THEN Back(x,m) ELSE x
             /\ l' = [l EXCEPT ![m] = [Idle EXCEPT !.on = TRUE, !.inc = s.inc, !.kept = l[m].kept]]
             /\ UNCHANGED <<old,h>>
Serve(p,m) ==
    LET R == ReadyStretch(p,Most) IN
    IF R # {} THEN GrantRuns(p,m,R)
    ELSE LET e == Min(p.next + Most, p.avail) IN IF e > p.next THEN [Grant(p,m,p.next,e,"range",FALSE) EXCEPT !.next = IF Bad("next_stays") THEN p.next + 1 ELSE e] ELSE p
Exchange(m) ==
    /\ l[m].on /\ l[m].inc = s.inc /\ l[m].kept = {} /\ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1] /\ old' = old
    /\ IF m \notin s.mem THEN l' = [l EXCEPT ![m] = Idle] /\ UNCHANGED <<s,h>>
       ELSE LET x == l[m]
                ok == {y.t : y \in Held(s.p,m)}
                acks == x.acks \cup (IF Bad("settled_in_hands") THEN x.hands ELSE {})
                V(Q) == {v \in Q : v[1] \in ok \/ Bad("no_fencing")}
                late == {v \in V(acks) : \E y \in s.p.leases : y.t # v[1] /\ v[2] \in Of(s.p,y)}
                p1 == RollAll(IF Bad("no_fencing") THEN SettleBlind(s.p,acks) ELSE SettleAll(s.p,V(acks)), V(x.rbs), FALSE)
                p2 == Adopt(EndAll(p1, {y \in Held(p1,m) : y.t <= x.have /\ Of1(x.hands,y.t) = {}}, 1))
                s1 == Back([s EXCEPT !.p = p2],m)
                p3 == IF s1.grace THEN p2 ELSE Serve(p2,m)
                new == {y \in Held(p3,m) : y.t > x.have}
                got == {v \in {<<y.t,o>> : y \in new, o \in Off} : v[2] \in Of(p3,Lease(p3,v[1]))}
                told == {v \in got : (p3.exc[v[2]].tok = v[1] /\ p3.exc[v[2]].red) \/ v[2] < Lease(p3,v[1]).seen}
            IN /\ s' = [s1 EXCEPT !.p = p3]
               /\ l' = [l EXCEPT ![m] = [@ EXCEPT !.have = p3.tok, !.acks = {}, !.rbs = {}, !.hands = @ \cup got]]
               /\ h' = [h EXCEPT !.cR = @ \cup Offs(V(acks)), !.disp = @ \cup Offs(got),
                          !.bad = @ \cup (IF late # {} THEN {"fence"} ELSE {}) \cup (IF Offs(got) \cap h.cR # {} THEN {"again"} ELSE {})
                                    \cup (IF Offs(got \ told) \cap h.disp # {} THEN {"unmarked"} ELSE {})]
Ack(m) == \E v \in l[m].hands : /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].acks = @ \cup {v}]
                                /\ h' = [h EXCEPT !.done = @ \cup {v[2]}] /\ UNCHANGED <<s,old,n>>
Roll(m) == \E v \in l[m].hands : /\ n.roll < MaxRoll /\ n' = [n EXCEPT !.roll = @ + 1]
                                 /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].rbs = @ \cup {v}] /\ UNCHANGED <<s,old,h>>
Expire(m) == /\ m \in s.mem /\ n.end < MaxEnd /\ n' = [n EXCEPT !.end = @ + 1]
             /\ s' = [s EXCEPT !.p = Orphaned(@,m,2), !.mem = @ \ {m}] /\ UNCHANGED <<old,l,h>>
--------------------------------------------------------------------------------
Replicate == n.fail < MaxFail /\ old # s /\ old' = s /\ UNCHANGED <<s,l,h,n>>
Known(p,o) == p.exc[o].red \/ o < p.seen \/ \E y \in p.leases : o \in Of(p,y)
Fault == /\ n.fail < MaxFail /\ n' = [n EXCEPT !.fail = @ + 1] /\ UNCHANGED <<old,l>>
         /\ \/ /\ s' = [old EXCEPT !.inc = s.inc + 1, !.p.leases = {[y EXCEPT !.orph = IF @ = 0 THEN 1 ELSE @] : y \in @}, !.mem = {},
                                  !.grace = old.mem # {}, !.awaited = old.mem, !.was = old.mem, !.claims = {}, !.timed = FALSE]
               /\ h' = [h EXCEPT !.cR = @ \cap Settled(old.p), !.disp = {o \in @ : Known(old.p,o)}]
            \/ /\ s' = [S0 EXCEPT !.inc = s.inc + 1, !.grace = TRUE, !.p.seen = N]
               /\ h' = [h EXCEPT !.cR = {}]
EndGrace == s.grace /\ s' = [s EXCEPT !.grace = FALSE, !.awaited = {}, !.timed = TRUE] /\ UNCHANGED <<old,l,h,n>>
Chunk(x,t) == [inc |-> x.inc, t |-> t, hands |-> Of1(x.hands,t), acks |-> Of1(x.acks,t)]
Notice(m) == /\ l[m].on /\ l[m].inc # s.inc
             /\ l' = [l EXCEPT ![m] = [Idle EXCEPT !.kept = l[m].kept \cup {Chunk(l[m],t) : t \in {v[1] : v \in l[m].hands \cup l[m].acks}}]]
             /\ UNCHANGED <<s,old,h,n>>
Below(k,c) == k.inc < c.inc \/ (k.inc = c.inc /\ k.tok < c.t)
Above(k,c) == k.inc > c.inc \/ (k.inc = c.inc /\ k.tok > c.t)
ClaimOne(x,m,c) ==
    LET offs == c.hands \cup c.acks
        p0 == Adopt(x.p)
        others == {k \in x.claims : \E y \in p0.leases : y.t = k.t /\ y.m # m}
        mine == {y \in Held(p0,m) : [t |-> y.t, inc |-> c.inc, tok |-> c.t] \in x.claims /\ Of(p0,y) \cap offs # {}}
        e == (CHOOSE o \in offs : \A q \in offs : q <= o) + 1
        unheard == {o \in Off : p0.next <= o /\ o < e}
        p1 == [p0 EXCEPT !.next = Max(@,e), !.dec = @ \cup unheard,
                         !.exc = [o \in Off |-> IF o \in unheard THEN [NoExc EXCEPT !.tok = 0, !.red = TRUE] ELSE @[o]]]
        beaten == {k.t : k \in {k \in others : IF Bad("lower_claim_wins") THEN Above(k,c) ELSE Below(k,c)}}
        grab == {o \in offs : p1.exc[o].tok \in {0} \cup beaten \/ (Bad("claims_settled") /\ o \in Settled(p1))}
        p2 == Grant(p1, m, Least(offs,0), e, "runs", FALSE)
        p3 == [p2 EXCEPT !.dec = @ \cup grab, !.exc = [o \in Off |-> IF o \in grab THEN [NoExc EXCEPT !.tok = p2.tok] ELSE @[o]]]
        (* A member that loses an offset loses the lease. Otherwise the reply would say that it settled an offset of another lease. *)
        lose == IF Bad("taken_silently") THEN {} ELSE {y \in p1.leases : y.t \in beaten /\ Of(p1,y) \cap offs # {}}
        p4 == EndAll(p3, lose, 1)
    IN IF mine # {} /\ ~Bad("claim_forgotten")
       THEN LET y == CHOOSE y \in mine : TRUE IN [s |-> [x EXCEPT !.p = p0], t |-> y.t, held |-> Of(p0,y)]
       ELSE IF ~x.grace /\ ~Bad("claims_after_grace") THEN [s |-> [x EXCEPT !.p = p0], t |-> 0, held |-> {}]
       ELSE IF grab = {} THEN [s |-> [x EXCEPT !.p = p1], t |-> 0, held |-> {}]
       ELSE [s |-> [x EXCEPT !.p = p4, !.claims = @ \cup {[t |-> p2.tok, inc |-> c.inc, tok |-> c.t]}], t |-> p2.tok, held |-> grab]
Claim(m) == /\ l[m].on /\ l[m].inc = s.inc /\ old' = old
            /\ \E c \in l[m].kept :
               IF m \notin s.mem THEN l' = [l EXCEPT ![m] = Idle] /\ UNCHANGED <<s,h,n>>
               ELSE LET a == ClaimOne(s,m,c)
                        got(S) == {<<a.t,o>> : o \in S \cap a.held}
                        wrong == \/ ~s.grace /\ a.t > s.p.tok
                                 \/ \E k \in s.claims : \E y \in Adopt(s.p).leases : y.t = k.t /\ y.m # m /\
                                       \E o \in Of(Adopt(s.p),y) \cap (c.hands \cup c.acks) : (o \in a.held /\ a.t > 0) # Below(k,c)
                    IN /\ s' = a.s
                       /\ h' = [h EXCEPT !.bad = @ \cup (IF wrong /\ (s.grace \/ a.t > s.p.tok) THEN {"claim"} ELSE {})]
                       /\ \/ /\ n' = n /\ l' = [l EXCEPT ![m] = IF a.t = 0 THEN [@ EXCEPT !.kept = @ \ {c}]
                                   ELSE [@ EXCEPT !.kept = @ \ {c}, !.have = Max(@,a.t), !.hands = @ \cup got(c.hands), !.acks = @ \cup got(c.acks)]]
                          \/ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1] /\ l' = l
Next == Replicate \/ Fault \/ EndGrace
        \/ \E m \in M : Attach(m) \/ Exchange(m) \/ Ack(m) \/ Roll(m) \/ Expire(m) \/ Notice(m) \/ Claim(m)
Spec == Init /\ [][Next]_vars
--------------------------------------------------------------------------------
(* I1: no offset is settled before it was acknowledged. *)
I1_SettledTrue == Settled(s.p) \subseteq h.done
(* I3: an accepted verdict is given by the lease that holds the offset. *)
I3_Fenced == "fence" \notin h.bad
(* I4: an offset that a confirmed acknowledgement settled stays settled and is not dispatched again, unless a fault lost that
   state. *)
I4_SettledStays == "again" \notin h.bad /\ h.cR \subseteq Settled(s.p)
(* I8: a message that was dispatched before is marked as redelivered. *)
I8_Marked == "unmarked" \notin h.bad
(* I9: settled, leased and ready offsets are disjoint and together all offsets: no offset has two leases, and none is lost. *)
I9_Conserved == Partitioned(s.p) /\ NoPhantoms(s.p)
(* I15: no new lease is granted before all attached members have claimed, unless one session timeout has passed. *)
I15_WaitedFor == ~s.grace /\ ~s.timed => \A m \in s.was : l[m].kept = {}
(* I16: if two members claim an offset, the member with the later lease gets it; after the grace period no claim is granted. *)
I16_HighestClaim == "claim" \notin h.bad
================================================================================
