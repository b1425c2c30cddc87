------------------------------- MODULE Partition -------------------------------
(* The state of one partition and the operations of the scripts on it: lua/include/partition.lua and redelivery.lua as values.

   An offset is decided when it is settled or an exception. Each undecided offset in [base, next) belongs to exactly one
   lease. A lease is of kind "range" (fixed horizon), "lane" (extended while it is held) or "runs" (exception ranges).
   Not modelled: time (an exception waits or does not), the bitmap's length and its conversion, records as opposed to offsets.
   Lane.tla, Shared.tla, Claims.tla and Keys.tla extend this module. *)
EXTENDS Integers, FiniteSets
CONSTANTS N,        \* offsets 0..N-1
          K,        \* maximum number of attempts; 0: no limit
          Defects   \* planted defects (see README.md); {}: the real behaviour
Off == 0..(N-1)
Max(a,b) == IF a > b THEN a ELSE b
Min(a,b) == IF a < b THEN a ELSE b
Least(S,d) == IF S = {} THEN d ELSE CHOOSE x \in S : \A y \in S : x <= y
Bad(d) == d \in Defects
--------------------------------------------------------------------------------
(* An exception: tok is the token of its lease (0: not leased, -1: not an exception), att the counted attempts, red: it may
   have been delivered, sus: it is a crash suspect (its last holder ended uncleanly), wt: it is not due yet. *)
NoExc == [tok |-> -1, att |-> 0, red |-> FALSE, sus |-> FALSE, wt |-> FALSE]
(* A lease: token t, member m, kind, range [s, e). Offsets below seen may have been delivered before. alone: an isolated last
   attempt. orph: how its end is counted after its member is gone (0: the member is attached). *)
P0 == [dec |-> {}, exc |-> [o \in Off |-> NoExc], next |-> 0, avail |-> 0, seen |-> 0, leases |-> {}, tok |-> 0]
Base(p) == Least({o \in 0..N : o \notin p.dec}, N)
Settled(p) == {o \in p.dec : p.exc[o].tok = -1}
Exceptions(p) == {o \in Off : p.exc[o].tok >= 0}
Floor(p) == Least(Exceptions(p) \cup {Base(p)}, 0)
Has(p,t) == \E x \in p.leases : x.t = t
Lease(p,t) == CHOOSE x \in p.leases : x.t = t
Of(p,l) == {o \in l.s..(l.e-1) : IF l.kind = "runs" THEN p.exc[o].tok = l.t ELSE o \notin p.dec \/ p.exc[o].tok = l.t}
(* how: 0 never dispatched, 1 dispatched and not counted, 2 counted, 3 unclean end of a lease with several offsets: the last
   attempt is not used up *)
Marks(x,how) ==
    IF how = 0 THEN x
    ELSE IF how = 1 THEN [x EXCEPT !.red = TRUE, !.sus = FALSE]
    ELSE IF how = 2 THEN [x EXCEPT !.att = @ + 1, !.red = TRUE, !.sus = FALSE]
    ELSE [x EXCEPT !.att = IF K > 0 /\ ~Bad("last_attempt_shared") THEN Min(@ + 1, Max(K - 1, @)) ELSE @ + 1,
                   !.red = TRUE, !.sus = TRUE]
Given(x,how,wait) == [Marks(x,how) EXCEPT !.tok = 0, !.wt = wait \/ (how < 2 /\ x.wt)]
GiveBack1(p,l,s,e,how,wait) ==
    LET x == [p EXCEPT !.exc = [o \in Off |-> IF o >= s /\ o < e /\ p.exc[o].tok = l.t THEN Given(p.exc[o],how,wait)
                                              ELSE p.exc[o]]]
        nx == Max(s, Base(x))
    IN IF l.kind = "runs" THEN x
       ELSE IF how = 0 /\ e >= x.next /\ (nx..(x.next-1)) \cap x.dec = {}
            THEN [x EXCEPT !.next = nx, !.leases = {IF y.t = l.t /\ y.e > nx THEN [y EXCEPT !.e = Max(nx, y.s)] ELSE y
                                                    : y \in x.leases}]
       ELSE LET U == {o \in s..(Min(e,x.next)-1) : o \notin x.dec \/ (Bad("end_unsettles") /\ x.exc[o].tok = -1)}
            IN [x EXCEPT !.exc = [o \in Off |-> IF o \in U THEN Given(NoExc,how,wait) ELSE x.exc[o]], !.dec = @ \cup U]
GiveBack(p,l,s,e,how,wait) == \* an offset that may not be written yet must not become an exception
    IF how = 0 /\ s < p.avail /\ p.avail < e
    THEN GiveBack1(GiveBack1(p,l,p.avail,e,how,wait), l, s, p.avail, how, wait)
    ELSE GiveBack1(p,l,s,e,how,wait)
EndLease(p,l,how0) ==
    LET how1 == IF how0 = 2 /\ ~l.alone THEN 3 ELSE how0
        how == IF Bad("unclean_uncounted") /\ how0 = 2 THEN 0 ELSE how1
        known == IF Bad("reservation_counted") THEN l.e ELSE Max(Min(l.e,p.avail), Min(l.s,l.e))
        p1 == IF l.e > known
              THEN GiveBack([p EXCEPT !.seen = IF how >= 2 /\ ~Bad("reservation_unmarked") THEN Max(@, l.e) ELSE @],
                            l, known, l.e, 0, FALSE)
              ELSE p
        from == Least({o \in Max(l.s,Base(p1))..(known-1) : o \notin p1.dec}, known)
        p2 == IF how = 0 /\ l.kind # "runs"
              THEN [p1 EXCEPT !.exc = [o \in Off |-> IF o >= l.s /\ o < from /\ p1.exc[o].tok = l.t
                                                     THEN [p1.exc[o] EXCEPT !.tok = 0] ELSE p1.exc[o]]]
              ELSE p1
        s == IF how = 0 /\ l.kind # "runs" THEN from ELSE l.s
        p3 == GiveBack(p2, l, s, known, how, FALSE)
    IN [p3 EXCEPT !.leases = {y \in p3.leases : y.t # l.t}]
(* An offset is settled under a lease: if it is an exception of the lease it stops being one, otherwise it becomes decided. *)
SettleOne(p,l,o) ==
    [p EXCEPT !.exc[o] = IF @.tok = l.t THEN NoExc ELSE @, !.dec = IF l.kind = "runs" THEN @ ELSE @ \cup {o},
              !.avail = Max(@, o + 1)]
RollOne(p,l,o,wait) == [GiveBack(p,l,o,o+1,2,wait) EXCEPT !.avail = Max(@, o + 1)]
(* A script with a defect: it settles without checking the lease. *)
SettleBlind(p,S) == LET O == {v[2] : v \in S} IN
    [p EXCEPT !.dec = @ \cup {o \in O : o < p.next}, !.exc = [o \in Off |-> IF o \in O THEN NoExc ELSE p.exc[o]]]
RECURSIVE SettleAll(_,_), RollAll(_,_,_), EndAll(_,_,_)
(* S: pairs <<token, offset>>. Pairs whose token has no lease any more change nothing. *)
SettleAll(p,S) == IF S = {} THEN p ELSE LET v == CHOOSE v \in S : TRUE IN
                  SettleAll(IF Has(p,v[1]) THEN SettleOne(p,Lease(p,v[1]),v[2]) ELSE p, S \ {v})
RollAll(p,S,wait) == IF S = {} THEN p ELSE LET v == CHOOSE v \in S : TRUE IN
                     RollAll(IF Has(p,v[1]) THEN RollOne(p,Lease(p,v[1]),v[2],wait) ELSE p, S \ {v}, wait)
EndAll(p,L,how) == IF L = {} THEN p ELSE LET t == Least({y.t : y \in L}, 0)  l == CHOOSE y \in L : y.t = t IN
                   EndAll(EndLease(p,Lease(p,t),how), L \ {l}, how)
Grant(p,m,s,e,kind,alone) ==
    [p EXCEPT !.tok = @ + 1,
              !.leases = @ \cup {[t |-> p.tok + 1, m |-> m, kind |-> kind, s |-> s, e |-> e, seen |-> p.seen,
                                  alone |-> alone, orph |-> 0]}]
IsLast(x) == K > 0 /\ x.sus /\ x.att = K - 1
Alike(x,y) == x.att = y.att /\ x.red = y.red /\ x.sus = y.sus
Pow == [i \in 0..4 |-> IF i = 0 THEN 1 ELSE IF i = 1 THEN 2 ELSE IF i = 2 THEN 4 ELSE IF i = 3 THEN 8 ELSE 16]
MostTogether(x) == IF ~x.sus \/ K = 0 \/ x.att >= K THEN N ELSE Pow[K - 1 - x.att]
RECURSIVE Take(_,_)
Take(S,n) == IF n = 0 \/ S = {} THEN {} ELSE LET o == Least(S,0) IN {o} \cup Take(S \ {o}, n - 1)
(* The ready exceptions, from the lowest offset on, that fit into one lease; {}: there is none. *)
Ready(p) == {o \in Off : p.exc[o].tok = 0 /\ ~p.exc[o].wt}
ReadyStretch(p,limit) ==
    LET R == Ready(p)  f == Least(R,0)
        alike == {o \in R : \A q \in R : q <= o => Alike(p.exc[q], p.exc[f])}
    IN IF R = {} THEN {} ELSE Take(alike, Min(limit, MostTogether(p.exc[f])))
GrantRuns(p,m,S) ==
    LET lo == Least(S,0)  hi == CHOOSE o \in S : \A q \in S : q <= o
        x == Grant(p, m, lo, hi + 1, "runs", IsLast(p.exc[lo]))
    IN [x EXCEPT !.exc = [o \in Off |-> IF o \in S THEN [x.exc[o] EXCEPT !.tok = x.tok] ELSE x.exc[o]]]
Due(p,D) == [p EXCEPT !.exc = [o \in Off |-> IF o \in D THEN [p.exc[o] EXCEPT !.wt = FALSE] ELSE p.exc[o]]]
--------------------------------------------------------------------------------
(* Leases of members that are gone end when a script accesses the partition. *)
Orphaned(p,m,how) == [p EXCEPT !.leases = {IF y.m = m /\ y.orph = 0 THEN [y EXCEPT !.orph = how] ELSE y : y \in @}]
Adopt(p) == EndAll(EndAll(p, {y \in p.leases : y.orph = 1}, 1), {y \in p.leases : y.orph = 2}, 2)
Held(p,m) == {y \in p.leases : y.m = m /\ y.orph = 0}
--------------------------------------------------------------------------------
(* I9, for one partition: settled, leased and ready offsets are disjoint and together all offsets. *)
Partitioned(p) ==
    /\ \A o \in Off : o < p.next /\ o \notin p.dec =>
          Cardinality({y \in p.leases : y.kind # "runs" /\ y.s <= o /\ o < y.e}) = 1
    /\ \A y, z \in p.leases : y.kind # "runs" /\ z.kind # "runs" /\ y.t # z.t => y.e <= z.s \/ z.e <= y.s
    /\ \A o \in Off : p.exc[o].tok > 0 => Has(p,p.exc[o].tok)
    /\ Exceptions(p) \subseteq p.dec
    /\ Base(p) <= p.next /\ \A o \in p.dec : o < p.next
    /\ \A y \in p.leases : y.kind # "runs" => y.e <= p.next
(* An offset that may not be written yet is not an exception. *)
NoPhantoms(p) == \A o \in Exceptions(p) : o < p.avail
================================================================================
