-------------------------------- MODULE Shared --------------------------------
(* A shared subscription on one partition: ranges with a fixed horizon, round-robin over the members that have credit,
   exceptions with attempts, crash suspects, and the isolated last attempt.

   Modelled: lua/exchange-7+3.lua with choose_shared.lua, redelivery.lua and partition.lua, and the member's part.
   An exchange has two steps: it is composed (verdicts, credit), and it is applied and answered. Between the two steps other
   exchanges may grant leases to the member, so a grant in between uses credit that the request still reports as free. A
   member session may end at any time, with its process (Crash) or without the member noticing (Expire). A message whose
   attempts are used up is written to the dead letters and settled.
   Not modelled: time and back-off, several partitions (end reporters, preferred partitions), selectors, bytes, repeated and
   late copies of exchanges (Lane.tla specifies them; the script is the same). *)
EXTENDS Partition, Sequences, TLC
CONSTANTS M, Win, First, MaxEx, MaxAtt, MaxRoll, MaxEnd
VARIABLES s,    \* Redis: the partition, the attached members and their order, credit, order of service, members kept free
          l,    \* members
          req,  \* exchanges that are composed and not applied
          end, h, n
vars == <<s,l,req,end,h,n>>
Perms == Permutations(M)
Idle == [on |-> FALSE, gen |-> 0, have |-> 0, todo |-> {}, hands |-> {}, acks |-> {}, rbs |-> {}]
NoReq == [on |-> FALSE]
Init == /\ s = [p |-> P0, gen |-> [m \in M |-> 0], gens |-> 0, cred |-> [m \in M |-> 0], order |-> <<>>, kept |-> {}]
        /\ l = [m \in M |-> Idle] /\ req = [m \in M |-> NoReq] /\ end = First
        /\ h = [cR |-> {}, disp |-> {}, done |-> {}, bad |-> {}, since |-> [m \in M |-> 0]]
        /\ n = [ex |-> 0, att |-> 0, roll |-> 0, end |-> 0]
Without(q,x) == SelectSeq(q, LAMBDA y : y # x)
--------------------------------------------------------------------------------
(* choose_shared.lua. x: [p, cred, order, kept] while the partition is served *)
Attached(x) == {m \in M : x.gen[m] # 0}
Hungry(x) == SelectSeq(x.order, LAMBDA m : x.cred[m] > 0)
HasAlone(x,m) == \E y \in Held(x.p,m) : y.alone
HasSus(x,m) == \E y \in Held(x.p,m) : y.kind = "runs" /\ \E o \in Of(x.p,y) : x.p.exc[o].sus
Seen(x) == {m \in Attached(x) : x.cred[m] > 0}
Open(x,m) == m \notin x.kept /\ (~HasAlone(x,m) \/ Bad("alone_shares")) /\ x.cred[m] > 0
FirstOf(x,S) == LET q == SelectSeq(x.order, LAMBDA m : m \in S) IN IF q = <<>> THEN {} ELSE {q[1]}
LastOf(x,S) == LET q == SelectSeq(x.order, LAMBDA m : m \in S) IN IF q = <<>> THEN {} ELSE {q[Len(q)]}
Busy(x,m,last,sus) == (last /\ Held(x.p,m) # {} /\ ~Bad("alone_shares")) \/ (sus /\ HasSus(x,m))
Choosable(x,last,sus) == {m \in Seen(x) : Open(x,m) /\ ~Busy(x,m,last,sus)}
Choose(x,last,sus) ==
    LET C == Choosable(x,last,sus)
        c == IF Bad("not_in_turn") THEN LastOf(x,C) ELSE FirstOf(x,C)
        K1 == x.kept \cap Attached(x)
        I == {m \in Seen(x) : Open(x,m) /\ Busy(x,m,last,sus)}
    IN IF ~last THEN [m |-> c, x |-> x]
       ELSE IF K1 # {} THEN [m |-> {m \in K1 : Held(x.p,m) = {}}, x |-> x]
       ELSE IF c # {} THEN [m |-> c, x |-> x]
       ELSE [m |-> {}, x |-> [x EXCEPT !.kept = @ \cup FirstOf(x,I)]]
Spend(x,m,k) == [x EXCEPT !.cred[m] = Max(@ - k, 0), !.order = Append(Without(@,m), m)]
(* I11: records the members that could have been chosen and were not, and the member that was chosen. *)
Note(x,m,C) == [x EXCEPT !.since = [i \in M |-> IF i = m \/ x.cred[i] = 0 THEN 0 ELSE IF i \in C THEN @[i] + 1 ELSE @[i]]]
RECURSIVE Serve(_,_,_)
Serve(x,share,left) ==
    LET fresh == Max(x.p.avail - x.p.next, 0)
        S == ReadyStretch(x.p,1)
        mk == x.p.exc[Least(S,0)]
        a == IF S = {} THEN [m |-> {}, x |-> x] ELSE Choose(x, IsLast(mk), mk.sus)
        b == Choose(a.x,FALSE,FALSE)
        count == Cardinality(Choosable(a.x,FALSE,FALSE))
    IN IF left = 0 \/ (fresh = 0 /\ S = {}) THEN x
       ELSE IF a.m # {} THEN
            LET m == CHOOSE m \in a.m : TRUE
                T == ReadyStretch(x.p, x.cred[m])
                p1 == GrantRuns(a.x.p, m, T)
            IN Serve(Note(Spend([a.x EXCEPT !.p = p1], m, Cardinality(T)), m, Choosable(a.x,IsLast(mk),mk.sus)), share, left - 1)
       ELSE IF fresh > 0 /\ b.m # {} THEN
            LET m == CHOOSE m \in b.m : TRUE
                sh == IF share = 0 THEN (fresh + count - 1) \div count ELSE share
                k == Min(a.x.cred[m], Min(sh, fresh))
                p1 == [Grant(a.x.p, m, a.x.p.next, a.x.p.next + k, "range", FALSE) EXCEPT !.next = @ + (IF Bad("next_stays") THEN Min(k,1) ELSE k)]
            IN Serve(Note(Spend([a.x EXCEPT !.p = p1], m, k), m, Choosable(a.x,FALSE,FALSE)), sh, left - 1)
       ELSE a.x
(* A member that was kept free and holds no lease was not needed: it is served like the others. *)
ServeAll(x,m) == LET y == Serve(x,0,4) IN
                 IF m \in y.kept /\ Held(y.p,m) = {} THEN Serve([y EXCEPT !.kept = @ \ {m}],0,4) ELSE y
Ended(x) == [x EXCEPT !.kept = @ \cap Attached(x)]
(* The offsets whose last attempt is used up by an unclean end although they were not isolated. *)
Innocent(x,y,m) == {o \in Off : y.exc[o].att > x.exc[o].att /\ K > 0 /\ y.exc[o].att >= K
                                /\ \E v \in l[m].hands : v[2] # o}
--------------------------------------------------------------------------------
Attach(m) == /\ ~l[m].on /\ n.att < MaxAtt /\ n' = [n EXCEPT !.att = @ + 1]
             /\ s' = [s EXCEPT !.p = Orphaned(@,m,2), !.gens = @ + 1, !.gen[m] = s.gens + 1, !.cred[m] = 0,
                               !.order = Append(Without(@,m), m), !.kept = @ \ {m}]
             /\ l' = [l EXCEPT ![m] = [Idle EXCEPT !.on = TRUE, !.gen = s.gens + 1]]
             /\ UNCHANGED <<req,end,h>>
Offs(m) == Cardinality(l[m].todo \cup l[m].hands)
Done(m,t) == {v \in l[m].todo \cup l[m].hands : v[1] = t} = {}
Send(m) == /\ l[m].on /\ ~req[m].on /\ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1]
           /\ req' = [req EXCEPT ![m] = [on |-> TRUE, gen |-> l[m].gen, have |-> l[m].have, rbs |-> l[m].rbs,
                         acks |-> l[m].acks \cup (IF Bad("settled_in_hands") THEN l[m].hands ELSE {}),
                         credit |-> Win - Offs(m), done |-> {t \in 1..l[m].have : Done(m,t)}, av |-> end]]
           /\ UNCHANGED <<s,l,end,h>>
Do(m) ==
    /\ req[m].on /\ req' = [req EXCEPT ![m] = NoReq]
    /\ LET q == req[m] IN
       IF s.gen[m] # q.gen /\ ~Bad("no_fencing") THEN /\ l' = [l EXCEPT ![m] = Idle] /\ s' = s /\ h' = h
       ELSE LET ok == {y.t : y \in Held(s.p,m)}
                unseen == UNION {Of(s.p,y) : y \in {y \in Held(s.p,m) : y.t > q.have}}
                V(S) == {v \in S : v[1] \in ok \/ Bad("no_fencing")}
                late == {v \in V(q.acks) \cup V(q.rbs) : \E y \in s.p.leases : y.t > v[1] /\ v[2] \in Of(s.p,y)}
                p0 == [s.p EXCEPT !.avail = Max(@,q.av)]
                p1 == RollAll(IF Bad("no_fencing") THEN SettleBlind(p0,q.acks) ELSE SettleAll(p0,V(q.acks)), V(q.rbs), FALSE)
                p2 == Adopt(EndAll(p1, {y \in p1.leases : y.t \in ok \cap q.done}, 1))
                credit == IF Bad("credit_unseen") THEN q.credit ELSE Max(q.credit - Cardinality(unseen), 0)
                x == ServeAll(Ended([p |-> p2, gen |-> s.gen, gens |-> s.gens, cred |-> [s.cred EXCEPT ![m] = credit],
                                     order |-> s.order, kept |-> s.kept, since |-> h.since]), m)
                new == {<<y.t,o>> : y \in {y \in Held(x.p,m) : y.t > q.have}, o \in Off}
                got == {v \in new : v[2] \in Of(x.p,Lease(x.p,v[1]))}
                live == {y.t : y \in Held(x.p,m)}
            IN /\ s' = [p |-> x.p, gen |-> x.gen, gens |-> x.gens, cred |-> x.cred, order |-> x.order, kept |-> x.kept]
               /\ h' = [h EXCEPT !.since = x.since, !.cR = @ \cup {v[2] : v \in V(q.acks)},
                                 !.bad = @ \cup (IF late # {} THEN {"fence"} ELSE {})
                                           \cup (IF Cardinality({v \in UNION {{<<y.t,o>> : o \in Of(x.p,y)} : y \in Held(x.p,m)} : TRUE})
                                                    > Win THEN {"credit"} ELSE {})]
               /\ l' = [l EXCEPT ![m] = [@ EXCEPT !.have = x.p.tok, !.todo = @ \cup got,
                                                  !.acks = @ \ q.acks, !.rbs = @ \ q.rbs]]
    /\ UNCHANGED <<end,n>>
Held1(m,t) == s.gen[m] = l[m].gen /\ \E y \in Held(s.p,m) : y.t = t
Attempts(v) == IF s.p.exc[v[2]].tok = v[1] THEN s.p.exc[v[2]].att ELSE 0
Told(m,v) == (s.p.exc[v[2]].tok = v[1] /\ s.p.exc[v[2]].red) \/ (\E y \in s.p.leases : y.t = v[1] /\ v[2] < y.seen)
Dispatch(m) == \E v \in l[m].todo :
    /\ l[m].on /\ (K = 0 \/ Attempts(v) < K) /\ Cardinality(l[m].hands) < Win
    /\ l' = [l EXCEPT ![m].todo = @ \ {v}, ![m].hands = @ \cup {v}]
    /\ h' = [h EXCEPT !.disp = @ \cup {v[2]},
                      !.bad = @ \cup (IF Held1(m,v[1]) /\ v[2] \in h.cR THEN {"again"} ELSE {})
                                \cup (IF Held1(m,v[1]) /\ v[2] \in h.disp /\ ~Told(m,v) THEN {"unmarked"} ELSE {})]
    /\ UNCHANGED <<s,req,end,n>>
Ack(m) == \E v \in l[m].hands : /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].acks = @ \cup {v}]
          /\ h' = [h EXCEPT !.done = @ \cup {v[2]}] /\ UNCHANGED <<s,req,end,n>>
Roll(m) == \E v \in l[m].hands : /\ n.roll < MaxRoll /\ n' = [n EXCEPT !.roll = @ + 1]
          /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].rbs = @ \cup {v}] /\ UNCHANGED <<s,req,end,h>>
(* The attempts of a message are used up: it is written to the dead letters, then settled. *)
Bury(m) == \E v \in l[m].todo : /\ K > 0 /\ Held1(m,v[1]) /\ Attempts(v) >= K
          /\ l' = [l EXCEPT ![m].todo = @ \ {v}, ![m].acks = @ \cup {v}]
          /\ h' = [h EXCEPT !.done = @ \cup {v[2]}] /\ UNCHANGED <<s,req,end,n>>
Off1(m,x) == [x EXCEPT !.p = Orphaned(@,m,2), !.gen[m] = 0, !.cred[m] = 0, !.order = Without(@,m), !.kept = @ \ {m}]
Judge(m) == LET y == Adopt(Orphaned(s.p,m,2)) IN
            [h EXCEPT !.bad = @ \cup (IF Innocent(s.p,y,m) # {} THEN {"innocent"} ELSE {}), !.since[m] = 0]
Crash(m) == /\ l[m].on /\ s.gen[m] = l[m].gen /\ n.end < MaxEnd /\ n' = [n EXCEPT !.end = @ + 1]
            /\ s' = Off1(m,s) /\ l' = [l EXCEPT ![m] = Idle] /\ req' = [req EXCEPT ![m] = NoReq] /\ h' = Judge(m)
            /\ UNCHANGED end
Expire(m) == /\ l[m].on /\ s.gen[m] = l[m].gen /\ n.end < MaxEnd /\ n' = [n EXCEPT !.end = @ + 1]
             /\ s' = Off1(m,s) /\ h' = Judge(m) /\ UNCHANGED <<l,req,end>>
Produce == end < N /\ end' = end + 1 /\ UNCHANGED <<s,l,req,h,n>>
Next == \/ \E m \in M : Attach(m) \/ Send(m) \/ Do(m) \/ Dispatch(m) \/ Ack(m) \/ Roll(m) \/ Bury(m) \/ Crash(m) \/ Expire(m)
        \/ Produce
Spec == Init /\ [][Next]_vars
--------------------------------------------------------------------------------
(* I1: no offset is settled before it was acknowledged or written to the dead letters. *)
I1_SettledTrue == Settled(s.p) \subseteq h.done
(* I3: an accepted verdict is given by the lease that holds the offset. *)
I3_Fenced == "fence" \notin h.bad
(* I4: an offset that a confirmed acknowledgement settled is not dispatched again under a valid lease. *)
I4_SettledStays == "again" \notin h.bad
(* I7: the leases of a member, read or not, fit into its window after every script. *)
I7_Credit == "credit" \notin h.bad /\ \A m \in M : Cardinality(l[m].hands) <= Win
(* I8: an offset whose last attempt is used up by an unclean end was isolated; the lease of an isolated last attempt has one
   offset, and its holder has no other lease. *)
I8_LastAlone == /\ "innocent" \notin h.bad
                /\ \A y \in s.p.leases : y.alone => Cardinality(Of(s.p,y)) <= 1
                /\ \A m \in M : HasAlone(s,m) => Cardinality(Held(s.p,m)) = 1
I8_Marked == "unmarked" \notin h.bad
(* I9: settled, leased and ready offsets are disjoint and together all offsets. *)
I9_Conserved == Partitioned(s.p) /\ NoPhantoms(s.p) /\ s.p.next <= s.p.avail
(* I11: no member that could be served is passed over more often than there are other members. *)
I11_Fair == \A m \in M : h.since[m] < Cardinality(M)
================================================================================
