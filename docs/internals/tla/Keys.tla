--------------------------------- MODULE Keys ---------------------------------
(* A lane of a key-ordered subscription. The attached members determine its keeper. The old keeper gives the lane up when none
   of its messages are in flight. One message of each key is in flight at a time.

   Modelled: lua/keyed.lua with exchange-7+3.lua, and the member's part (kafkadur/consumer/key_queue.py). A lane is a partition of
   its own (Partition.tla). Here it is the second of the two lanes of a partition, so that the second member to attach becomes
   its keeper. An exchange has two steps: it is composed, and it is applied and answered. A member session may end at any time.
   Not modelled: time (an exception waits or does not), records of other lanes (they are gaps here), messages parked behind a
   stuck key, pausing, several partitions, repeats and late copies of exchanges (Lane.tla). *)
EXTENDS Partition, Sequences, TLC
CONSTANTS M, Key,      \* key of each offset: a function of Off
          Win, Span,   \* window; distance from the position to the horizon
          First, MaxEx, MaxAtt, MaxRoll, MaxEnd
VARIABLES s, l, req, end, h, n
vars == <<s,l,req,end,h,n>>
Perms == Permutations(M)
(* todo, hands (in flight), acks, rbs (rollbacks): <<token, offset>>; pos: the position up to which the lane was examined;
   exp: offsets that were rolled back and are expected again. *)
Idle == [on |-> FALSE, gen |-> 0, have |-> 0, todo |-> {}, hands |-> {}, acks |-> {}, rbs |-> {}, exp |-> {}, drn |-> FALSE]
NoReq == [on |-> FALSE]
OneKey == [o \in Off |-> 1]
TwoKeys == [o \in Off |-> o % 2]
Init == /\ s = [p |-> P0, gen |-> [m \in M |-> 0], gens |-> 0, ranks |-> <<>>, keeper |-> {}]
        /\ l = [m \in M |-> Idle] /\ req = [m \in M |-> NoReq] /\ end = First
        /\ h = [cR |-> {}, disp |-> {}, done |-> {}, bad |-> {}] /\ n = [ex |-> 0, att |-> 0, roll |-> 0, end |-> 0]
Without(q,x) == SelectSeq(q, LAMBDA y : y # x)
--------------------------------------------------------------------------------
Attached(x) == {m \in M : x.gen[m] # 0}
KeeperToBe(x) == IF x.ranks = <<>> THEN {} ELSE {x.ranks[(Len(x.ranks) \div 2) + 1]}
(* A lease whose holder still waits for an offset that is not due ends as if it had not been dispatched. *)
Waits(p,y) == y.kind = "runs" /\ \E o \in Of(p,y) : p.exc[o].wt
RECURSIVE End2(_,_,_)
End2(p,L,how) == IF L = {} THEN p ELSE LET t == Least({y.t : y \in L}, 0)  y == CHOOSE y \in L : y.t = t IN
                 End2(EndLease(p, Lease(p,t), IF Waits(p,Lease(p,t)) THEN 0 ELSE how), L \ {y}, how)
AdoptKeyed(p) == End2(p, {y \in p.leases : y.orph # 0}, 2)
(* All exceptions without a lease, due or not: the keeper waits for them and keeps back messages with the same key. *)
Stretch(p) == LET R == {o \in Off : p.exc[o].tok = 0 /\ (~Bad("due_only") \/ ~p.exc[o].wt)}  f == Least(R,0) IN
              IF R = {} THEN {} ELSE {o \in R : \A q \in R : q <= o => (Alike(p.exc[q],p.exc[f]) /\ p.exc[q].wt = p.exc[f].wt)}
RECURSIVE Exc(_,_)
Exc(p,m) == LET S == Stretch(p) IN IF S = {} THEN p ELSE Exc(GrantRuns(p,m,S),m)
Serve(x,m,pos) ==
    LET k1 == x.keeper \cap Attached(x)
        to == KeeperToBe(x)
        k == IF k1 = {} THEN to ELSE k1
        y == [x EXCEPT !.keeper = k]
        p1 == Exc(y.p,m)
        L == {z \in p1.leases : z.kind = "lane" /\ z.orph = 0}
        z == CHOOSE z \in L : TRUE
        e0 == Min(p1.next + Span, N)
        e1 == Min(Min(pos, z.e) + Span, N)
    IN IF to # {m} \/ (k # to /\ ~Bad("keeper_unasked")) THEN y
       ELSE IF L = {} THEN [y EXCEPT !.p = IF e0 > p1.next THEN [Grant(p1,m,p1.next,e0,"lane",FALSE) EXCEPT !.next = e0] ELSE p1]
       ELSE IF z.m = m /\ pos >= 0 /\ e1 > z.e
            THEN [y EXCEPT !.p = [p1 EXCEPT !.leases = (@ \ {z}) \cup {[z EXCEPT !.e = e1]}, !.next = Max(@,e1)]]
       ELSE [y EXCEPT !.p = p1]
GiveUp(x,m) == IF x.keeper = {m} THEN [x EXCEPT !.p = End2(@, Held(x.p,m), 0), !.keeper = {}] ELSE x
--------------------------------------------------------------------------------
Attach(m) == /\ ~l[m].on /\ n.att < MaxAtt /\ n' = [n EXCEPT !.att = @ + 1]
             /\ s' = [s EXCEPT !.p = Orphaned(@,m,2), !.gens = @ + 1, !.gen[m] = s.gens + 1, !.ranks = Append(Without(@,m), m)]
             /\ l' = [l EXCEPT ![m] = [Idle EXCEPT !.on = TRUE, !.gen = s.gens + 1]]
             /\ UNCHANGED <<req,end,h>>
LaneOf(m) == {y \in Held(s.p,m) : y.kind = "lane" /\ y.t <= l[m].have}
(* The position up to which the lane was examined: a message that waits for its key does not hold back other messages. *)
Pos(m) == IF LaneOf(m) = {} THEN -1 ELSE LET y == CHOOSE y \in LaneOf(m) : TRUE IN Min(y.e, Max(y.s, end))
Used(m) == {t \in 1..l[m].have : {v \in l[m].todo \cup l[m].hands : v[1] = t} = {}}
Drained(m) == l[m].drn /\ (l[m].hands = {} \/ Bad("not_drained"))
Send(m) == /\ l[m].on /\ ~req[m].on /\ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1]
           /\ req' = [req EXCEPT ![m] = [on |-> TRUE, gen |-> l[m].gen, have |-> l[m].have, rbs |-> l[m].rbs,
                                         acks |-> l[m].acks \cup (IF Bad("settled_in_hands") THEN l[m].hands ELSE {}),
                                         done |-> Used(m), pos |-> Pos(m), av |-> end, drained |-> Drained(m)]]
           /\ UNCHANGED <<s,l,end,h>>
Do(m) == \E wait \in (IF req[m].on /\ req[m].rbs # {} THEN BOOLEAN ELSE {FALSE}) :
    /\ req[m].on /\ req' = [req EXCEPT ![m] = NoReq]
    /\ LET q == req[m] IN
       IF s.gen[m] # q.gen THEN /\ l' = [l EXCEPT ![m] = Idle] /\ s' = s /\ h' = h
       ELSE LET ok == {y.t : y \in Held(s.p,m)}
                V(S) == {v \in S : v[1] \in ok}
                p1 == RollAll(SettleAll([s.p EXCEPT !.avail = Max(@,q.av)], V(q.acks)), V(q.rbs), wait)
                p2 == AdoptKeyed(End2(p1, {y \in p1.leases : y.kind = "runs" /\ y.t \in ok \cap q.done}, 1))
                x0 == [s EXCEPT !.p = p2]
                x1 == IF q.drained THEN GiveUp(x0,m) ELSE x0
                x == Serve(x1,m,q.pos)
                mine == Held(x.p,m)
                got == {v \in {<<y.t,o>> : y \in mine, o \in Off} :
                           LET y == Lease(x.p,v[1]) IN v[2] \in Of(x.p,y) /\ (y.kind = "lane" \/ y.t > q.have)}
                known == l[m].hands \cup l[m].acks \cup l[m].rbs
                live == {y.t : y \in mine}
                drn == x.keeper = {m} /\ KeeperToBe(x) # {m}
            IN /\ s' = x
               /\ h' = [h EXCEPT !.cR = @ \cup {v[2] : v \in V(q.acks)}]
               /\ l' = [l EXCEPT ![m] = [@ EXCEPT !.have = x.p.tok, !.drn = drn,
                          !.acks = {v \in @ \ q.acks : v[1] \in live \/ ~q.drained}, !.rbs = @ \ q.rbs,
                          !.todo = IF drn THEN {} ELSE {v \in @ : v[1] \in live} \cup {v \in got : \A w \in known : w # v},
                          !.exp = IF x.keeper = {m} THEN @ ELSE {}]]
    /\ UNCHANGED <<end,n>>
Stands(m,t) == s.gen[m] = l[m].gen /\ \E y \in Held(s.p,m) : y.t = t
Told(v) == (s.p.exc[v[2]].tok = v[1] /\ s.p.exc[v[2]].red) \/ (\E y \in s.p.leases : y.t = v[1] /\ v[2] < y.seen)
(* One message of a key at a time, the lowest offset first. While a rolled-back message is expected, only that message. *)
Free(m,o) == /\ \A v \in l[m].hands \cup l[m].rbs : Key[v[2]] # Key[o]
             /\ \A v \in l[m].todo : Key[v[2]] = Key[o] => o <= v[2]
             /\ \A e \in l[m].exp : Key[e] = Key[o] => e = o
Dispatch(m) == \E v \in l[m].todo : LET o == v[2] IN
    /\ l[m].on /\ ~l[m].drn /\ o < end /\ (Cardinality(l[m].hands) < Win \/ Bad("window_ignored"))
    /\ (Free(m,o) \/ Bad("keys_ignored")) /\ ~(s.p.exc[o].tok = v[1] /\ s.p.exc[o].wt)
    /\ l' = [l EXCEPT ![m].todo = @ \ {v}, ![m].hands = @ \cup {v}, ![m].exp = @ \ {o}]
    /\ h' = [h EXCEPT !.disp = @ \cup {o},
                      !.bad = @ \cup (IF Stands(m,v[1]) /\ o \in h.cR THEN {"again"} ELSE {})
                                \cup (IF Stands(m,v[1]) /\ o \in h.disp /\ ~Told(v) THEN {"unmarked"} ELSE {})
                                \cup (IF Stands(m,v[1]) /\ \E e \in Off : e < o /\ Key[e] = Key[o] /\ e \notin h.done
                                      THEN {"order"} ELSE {})]
    /\ UNCHANGED <<s,req,end,n>>
Ack(m) == \E v \in l[m].hands : /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].acks = @ \cup {v}]
          /\ h' = [h EXCEPT !.done = @ \cup {v[2]}] /\ UNCHANGED <<s,req,end,n>>
Roll(m) == \E v \in l[m].hands : /\ n.roll < MaxRoll /\ n' = [n EXCEPT !.roll = @ + 1]
          /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].rbs = @ \cup {v}, ![m].exp = @ \cup {v[2]}]
          /\ UNCHANGED <<s,req,end,h>>
Off1(m) == [s EXCEPT !.p = Orphaned(@,m,2), !.gen[m] = 0, !.ranks = Without(@,m)]
Crash(m) == /\ l[m].on /\ s.gen[m] = l[m].gen /\ n.end < MaxEnd /\ n' = [n EXCEPT !.end = @ + 1]
            /\ s' = Off1(m) /\ l' = [l EXCEPT ![m] = Idle] /\ req' = [req EXCEPT ![m] = NoReq] /\ UNCHANGED <<end,h>>
Expire(m) == /\ l[m].on /\ s.gen[m] = l[m].gen /\ n.end < MaxEnd /\ n' = [n EXCEPT !.end = @ + 1]
             /\ s' = Off1(m) /\ UNCHANGED <<l,req,end,h>>
Wait == \E o \in Off : s.p.exc[o].wt /\ s' = [s EXCEPT !.p = Due(@,{o})] /\ UNCHANGED <<l,req,end,h,n>>
Produce == end < N /\ end' = end + 1 /\ UNCHANGED <<s,l,req,h,n>>
Next == \/ \E m \in M : Attach(m) \/ Send(m) \/ Do(m) \/ Dispatch(m) \/ Ack(m) \/ Roll(m) \/ Crash(m) \/ Expire(m)
        \/ Wait \/ Produce
Spec == Init /\ [][Next]_vars
--------------------------------------------------------------------------------
(* I1: no offset is settled before it was acknowledged. *)
I1_SettledTrue == Settled(s.p) \subseteq h.done
(* I4: an offset that a confirmed acknowledgement settled is not dispatched again under a valid lease. *)
I4_SettledStays == "again" \notin h.bad
(* I5: every lease of the lane belongs to its keeper; of two attached members only one has messages of the lane in flight. *)
I5_OneKeeper == /\ \A y \in s.p.leases : y.orph = 0 => s.keeper = {y.m}
                /\ Cardinality({m \in M : l[m].hands # {} /\ s.gen[m] = l[m].gen}) <= 1
(* I6: a message is dispatched only when an application has settled all earlier messages of its key. *)
I6_KeyOrder == "order" \notin h.bad
(* I7: messages in flight fit into the window. *)
I7_Window == \A m \in M : Cardinality(l[m].hands) <= Win
I8_Marked == "unmarked" \notin h.bad
(* I9: settled, leased and ready offsets are disjoint and together all offsets. *)
I9_Conserved == Partitioned(s.p) /\ NoPhantoms(s.p)
================================================================================
