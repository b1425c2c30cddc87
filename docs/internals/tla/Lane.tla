--------------------------------- MODULE Lane ---------------------------------
(* One lane over one partition (exclusive, priority, serial): attaching, exchanges, the confirmed horizon, turns that
   pass by a handover ("offer"), takeover, restart and loss of Redis.

   Modelled: lua/exchange-7+3.lua with lane.lua, attach-7.lua, detach-7+3.lua, reincarnate-7.lua, and the member's part
   (kafkadur/consumer/member.py); reclaim-7+3.lua and kafkadur/consumer/losses.py.
   What is granted to the next holder when the lanes pass is pushed to it: this may be lost, or come late.
   A request, its application and its reply are separate steps. A reply may be lost; then the request is repeated unchanged
   under its number. An old copy of a request may arrive late, even after its member attached again. The end of a member
   session and silence are one action; with Pause = FALSE a member session ends only after its member stopped dispatching.
   Faults: another server with an older copy, or an empty server that is rebuilt from the mirrored floor.
   Not modelled: time, bytes, several partitions, leases of a whole subscription, pausing a subscription, strict order,
   selectors, back-off. *)
EXTENDS Partition, Sequences, TLC
CONSTANTS M,            \* members (model values)
          Turns,        \* TRUE: serial; FALSE: the holder keeps the lane until the holder is gone
          Win, Bud,     \* window, unconfirmed budget (records)
          First,        \* end of the log at the beginning
          MaxEx, MaxAtt, MaxRoll, MaxFail, MaxDup, MaxCrash, MaxStop,
          Pause         \* TRUE: a holder may outlive its member session without noticing
VARIABLES r,    \* the state of Redis
          old,  \* the copy of that state on another server
          fl,   \* the floor mirrored to Kafka
          l,    \* members
          net,  \* one exchange under way for each member
          dup,  \* late copies of requests
          psh,  \* what was granted to members in exchanges of others, on its way to them
          end,  \* end of the log
          h,    \* history: the facts that the invariants use
          n     \* history: counters that keep the model finite
vars == <<r,old,fl,l,net,dup,psh,end,h,n>>
Perms == Permutations(M)
Gone == [on |-> FALSE, gen |-> 0, seq |-> 0]
R0 == [ok |-> TRUE, inc |-> 1, grace |-> FALSE, awaited |-> {}, p |-> P0, mem |-> [m \in M |-> Gone], ranks |-> <<>>,
       holder |-> {}, gens |-> 0, claims |-> {}, was |-> {}, timed |-> FALSE]
Idle == [on |-> FALSE, inc |-> 0, gen |-> 0, seq |-> 0, have |-> 0, run |-> "no", frz |-> FALSE, ls |-> {}, hands |-> {},
         acks |-> {}, rbs |-> {}, kept |-> {}]
NoMsg == [st |-> "none"]
Init == /\ r = R0 /\ old = R0 /\ fl = 0 /\ l = [m \in M |-> Idle] /\ net = [m \in M |-> NoMsg] /\ dup = {} /\ psh = {} /\ end = First
        /\ h = [cR |-> {}, disp |-> {}, done |-> {}, bad |-> {}, top |-> [o \in Off |-> 0], offers |-> [o \in Off |-> 0], blind |-> FALSE]
        /\ n = [ex |-> 0, att |-> 0, roll |-> 0, fail |-> 0, dup |-> 0, crash |-> 0, stop |-> 0]
--------------------------------------------------------------------------------
(* Redis: the holder of the lane *)
In(s,x) == \E i \in 1..Len(s) : s[i] = x
Without(s,x) == SelectSeq(s, LAMBDA y : y # x)
Rank(s,x) == CHOOSE i \in 1..Len(s) : s[i] = x
Holder(s) == IF s.holder # {} /\ \A m \in s.holder : s.mem[m].on THEN s.holder
             ELSE IF s.ranks = <<>> THEN {} ELSE {s.ranks[1]}
Successor(s,m) == IF ~Turns \/ ~In(s.ranks,m) \/ Len(s.ranks) < 2 THEN {}
                  ELSE {s.ranks[(Rank(s.ranks,m) % Len(s.ranks)) + 1]}
LaneOf(s) == {y \in s.p.leases : y.kind = "lane" /\ y.orph = 0}
(* lane.lua, serve_lane: exceptions first, then the lane itself up to its confirmed horizon. *)
RECURSIVE Runs(_,_,_)
Runs(p,m,left) == LET S == ReadyStretch(p,left) IN
                  IF S = {} \/ left = 0 THEN p ELSE Runs(GrantRuns(p,m,S), m, left - Cardinality(S))
Serve(s,m,pos,offered) ==
    LET span == IF Successor(s,m) # {} THEN Win ELSE Win + Bud
        p1 == Runs(s.p,m,span)
        bound == IF Successor(s,m) # {} THEN s.p.avail ELSE N
        L == {y \in p1.leases : y.kind = "lane" /\ y.orph = 0}
        y == CHOOSE y \in L : TRUE
    IN IF Ready(p1) # {} THEN p1
       ELSE IF L = {} THEN LET e == Min(p1.next + span, bound) IN
            IF e > p1.next THEN [Grant(p1,m,p1.next,e,"lane",FALSE) EXCEPT !.next = e] ELSE p1
       ELSE IF pos < 0 THEN p1
       ELSE LET e == Min(Min(pos,y.e) + span, bound) IN
            IF e > y.e \/ (Bad("horizon_falls") /\ e >= y.s)
            THEN [p1 EXCEPT !.leases = (@ \ {y}) \cup {[y EXCEPT !.e = e]}, !.next = Max(@,e)]
            ELSE IF offered /\ bound < N THEN EndLease(p1,y,0) ELSE p1
(* pass_turn *)
Deliverable(p,pos) == Ready(p) # {} \/ p.avail > (IF pos >= 0 THEN pos ELSE p.next)
Pass(s,m,pos) ==
    IF Holder(s) = {m} /\ Successor(s,m) # {} /\ Deliverable(s.p,pos)
    THEN [s EXCEPT !.p = EndAll(s.p, Held(s.p,m), 0), !.holder = Successor(s,m)]
    ELSE s
(* The exchange. The reply is made from the state after it. A repeated request is answered again and not applied again. *)
Reply(s,q,code,refused) ==
    [code |-> code, tok |-> s.p.tok, refused |-> refused,
     grants |-> {y \in Held(s.p,q.m) : y.t > q.have}, held |-> {y.t : y \in Held(s.p,q.m)},
     hor |-> {y \in Held(s.p,q.m) : y.kind = "lane"}, marks |-> s.p.exc]
(* The next holder is told what was granted to it when the lanes passed, as its own next exchange would tell it. *)
Push(s,m) == [m |-> m, inc |-> s.inc, gen |-> s.mem[m].gen, seq |-> s.mem[m].seq, tok |-> s.p.tok, grants |-> Held(s.p,m),
              marks |-> s.p.exc]
Names(q) == {v[1] : v \in q.acks \cup q.rbs} \cup q.done
Mine(s,q) == IF Bad("no_fencing") THEN Names(q) ELSE {y.t : y \in Held(s.p,q.m)}
(* note_back: a member that was attached before a restart has come back and has leased its messages again. *)
Back(s,m) == IF s.awaited = {} THEN s
             ELSE [s EXCEPT !.awaited = @ \ {m}, !.grace = @ /\ s.awaited # {m}]
Exchange(s,q) ==
    IF q.inc # s.inc THEN [r |-> s, p |-> Reply(s,q,"INCARNATION",{}), new |-> FALSE, push |-> {}]
    ELSE IF ~Bad("no_fencing") /\ (~s.mem[q.m].on \/ (q.gen # s.mem[q.m].gen /\ ~Bad("numbers_restart")))
         THEN [r |-> s, p |-> Reply(s,q,"FENCED",{}), new |-> FALSE, push |-> {}]
    ELSE IF q.seq < s.mem[q.m].seq /\ ~Bad("no_numbers") THEN [r |-> s, p |-> Reply(s,q,"STALE",{}), new |-> FALSE, push |-> {}]
    ELSE IF q.seq = s.mem[q.m].seq /\ ~Bad("no_numbers")
         THEN [r |-> s, p |-> Reply(s,q,"OK",Names(q) \ {y.t : y \in s.p.leases}), new |-> FALSE, push |-> {}]
    ELSE LET ok == Mine(s,q)
             V(S) == {v \in S : v[1] \in ok}
             s0 == Back([s EXCEPT !.mem[q.m].seq = q.seq, !.p.avail = Max(@, q.av)], q.m)
             p0 == IF Bad("no_fencing") THEN SettleBlind(s0.p, q.acks) ELSE SettleAll(s0.p, V(q.acks))
             p1 == RollAll(p0, V(q.rbs), TRUE)
             p2 == EndAll(p1, {y \in p1.leases : y.t \in ok \cap q.done}, 1)
             s1 == [s0 EXCEPT !.p = Adopt(p2)]
             free == ~s.grace
             s2 == IF q.offer /\ free THEN Pass(s1,q.m,q.pos) ELSE s1
             s3 == [s2 EXCEPT !.holder = Holder(s2)]
             passed == s2.holder # s1.holder /\ \A m \in s2.holder : Held(s2.p,m) = {}
             s4 == IF free /\ s3.holder = {q.m} THEN [s3 EXCEPT !.p = Serve(s3,q.m,q.pos,q.offer)]
                   ELSE IF passed THEN [s3 EXCEPT !.p = Serve(s3,CHOOSE m \in s3.holder : TRUE,-1,FALSE)] ELSE s3
         IN [r |-> s4, p |-> Reply(s4,q,"OK",Names(q) \ ok), new |-> TRUE,
             push |-> IF passed THEN {Push(s4,m) : m \in s4.holder} ELSE {}]
--------------------------------------------------------------------------------
(* Members *)
Lane1(x) == {y \in x.ls : y.kind = "lane"}
Todo(y) == IF y.kind = "runs" THEN y.offs ELSE y.pos..(y.e - 1)
Pos(x) == IF Lane1(x) = {} THEN -1 ELSE (CHOOSE y \in Lane1(x) : TRUE).pos
Open(x,t) == {v \in x.hands \cup x.acks \cup x.rbs : v[1] = t}
Used(x) == {y.t : y \in {y \in x.ls : y.kind = "runs" /\ y.offs = {} /\ {v \in x.hands : v[1] = y.t} = {}}}
Request(m,offer) == [m |-> m, inc |-> l[m].inc, gen |-> l[m].gen, seq |-> l[m].seq + 1, have |-> l[m].have, pos |-> Pos(l[m]),
                     acks |-> l[m].acks \cup (IF Bad("settled_in_hands") THEN l[m].hands ELSE {}), rbs |-> l[m].rbs,
                     done |-> Used(l[m]), av |-> end, offer |-> offer]
Attach(m) ==
    /\ ~l[m].on /\ r.ok /\ n.att < MaxAtt /\ n' = [n EXCEPT !.att = @ + 1]
    /\ LET g == r.gens + 1
           ranks == Append(Without(r.ranks,m), m)
           s == [r EXCEPT !.gens = g, !.mem[m] = [on |-> TRUE, gen |-> g, seq |-> 0], !.ranks = ranks,
                          !.p = IF r.mem[m].on THEN Orphaned(r.p,m,2) ELSE r.p,
                          !.holder = IF Len(ranks) = 1 THEN {m} ELSE @]
       IN /\ r' = IF Bad("back_at_attach") THEN Back(s,m) ELSE s
          /\ l' = [l EXCEPT ![m] = [Idle EXCEPT !.on = TRUE, !.inc = r.inc, !.gen = g, !.run = "yes", !.kept = l[m].kept]]
    /\ UNCHANGED <<old,fl,net,dup,end,h,psh>>
Send(m) ==
    /\ l[m].on /\ net[m].st = "none" /\ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1] /\ l[m].kept = {}
    /\ \E offer \in (IF Turns /\ l[m].ls # {} /\ (l[m].hands = {} \/ Bad("offer_in_hands")) THEN BOOLEAN ELSE {FALSE}) :
          /\ net' = [net EXCEPT ![m] = [st |-> "req", q |-> Request(m,offer), fresh |-> TRUE]]
          /\ l' = [l EXCEPT ![m].seq = @ + 1, ![m].frz = offer /\ ~Bad("offer_unfrozen")]
    /\ UNCHANGED <<r,old,fl,dup,end,h,psh>>
Before(o) == IF r.ok THEN h.top[o] ELSE 0
(* The grants that did not exist before. *)
Granted(p) ==
    LET cover == {o \in Off : \E y \in p.leases : y.orph = 0 /\ o \in Of(p,y) /\ ~\E z \in r.p.leases : z.t = y.t /\ o \in Of(r.p,z)}
    IN [h EXCEPT !.offers = [o \in Off |-> IF o \in cover THEN Min(@[o] + 1, 3) ELSE @[o]],
                 !.top = [o \in Off |-> IF o \in cover THEN (CHOOSE y \in p.leases : y.orph = 0 /\ o \in Of(p,y)).t ELSE @[o]]]
Effect(q,x) ==
    /\ r' = x.r
    /\ h' = IF ~x.new THEN h ELSE
            LET late == {v \in q.acks \cup q.rbs : v[1] \in Mine(r,q) /\ h.top[v[2]] > v[1]}
            IN [Granted(x.r.p) EXCEPT !.bad = @ \cup (IF late # {} THEN {"fence"} ELSE {}),
                         !.cR = @ \cup {v[2] : v \in {v \in q.acks : v[1] \in Mine(r,q)}}]
Apply(m) ==
    /\ net[m].st = "req" /\ r.ok
    /\ LET q == net[m].q  x == Exchange(r,q) IN
       /\ Effect(q,x) /\ psh' = psh \cup x.push
       /\ net' = [net EXCEPT ![m] = [st |-> "rep", q |-> q, p |-> x.p, fresh |-> net[m].fresh,
                                     renews |-> x.new \/ ~Bad("repeat_renews_not")]]
       /\ \/ dup' = dup /\ n' = n
          \/ n.dup < MaxDup /\ dup' = dup \cup {q} /\ n' = [n EXCEPT !.dup = @ + 1]
    /\ UNCHANGED <<old,fl,l,end>>
ApplyLate == /\ r.ok /\ \E q \in dup : LET x == Exchange(r,q) IN Effect(q,x) /\ psh' = psh \cup x.push /\ dup' = dup \ {q}
             /\ UNCHANGED <<old,fl,l,net,end,n>>
LoseReply(m) == /\ net[m].st = "rep" /\ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1]
                /\ net' = [net EXCEPT ![m] = [st |-> "req", q |-> net[m].q, fresh |-> TRUE]]
                /\ UNCHANGED <<r,old,fl,l,dup,end,h,psh>>
Local(y,p) == [t |-> y.t, kind |-> y.kind, s |-> y.s, e |-> y.e, pos |-> y.s, seen |-> y.seen,
               offs |-> IF y.kind = "runs" THEN {o \in Off : p.marks[o].tok = y.t} ELSE {},
               red |-> y.kind = "runs" /\ \A o \in Off : p.marks[o].tok = y.t => p.marks[o].red]
(* consumer/losses.py: messages in flight, or acknowledged and not confirmed, are leased again when the member is attached again *)
Verdicts(x,t) == {v[2] : v \in {v \in x.hands \cup x.acks : v[1] = t}}
Chunk(x,t) == LET L == {y \in x.ls : y.t = t}  y == CHOOSE y \in L : TRUE IN
              [inc |-> x.inc, t |-> t, hands |-> {v[2] : v \in {v \in x.hands : v[1] = t}},
               acks |-> {v[2] : v \in {v \in x.acks : v[1] = t}},
               red |-> L # {} /\ (y.red \/ \A o \in Verdicts(x,t) : o < y.seen)]
Lost(x) == [Idle EXCEPT !.kept = x.kept \cup {Chunk(x,t) : t \in {v[1] : v \in x.hands \cup x.acks}}]
Recv(m) ==
    /\ net[m].st = "rep" /\ net' = [net EXCEPT ![m] = NoMsg]
    /\ LET p == net[m].p  q == net[m].q  x == l[m]
           gone == p.refused \cup q.done \cup (IF q.offer THEN {y.t : y \in x.ls} \ p.held ELSE {})
           kept == {y \in x.ls : y.t \notin gone}
           e(y) == IF \E z \in p.hor : z.t = y.t THEN (CHOOSE z \in p.hor : z.t = y.t).e ELSE y.e
           moved == {[y EXCEPT !.e = IF q.offer THEN e(y) ELSE Max(y.e, e(y)),
                               !.pos = IF q.offer THEN Min(@, Max(e(y), y.s)) ELSE @] : y \in kept}
           new == {Local(y,p) : y \in {z \in p.grants : \A w \in x.ls : w.t # z.t}}
           live(S) == {v \in S : v[1] \notin p.refused}
       IN l' = [l EXCEPT ![m] =
            IF p.code = "INCARNATION" THEN Lost(x)
            ELSE IF p.code # "OK" THEN Idle
            ELSE [x EXCEPT !.have = p.tok, !.frz = FALSE, !.ls = moved \cup new, !.acks = live(@ \ q.acks),
                           !.rbs = live(@ \ q.rbs), !.hands = live(@),
                           !.run = IF ~net[m].fresh /\ ~Bad("any_reply_resumes") THEN @
                                   ELSE IF net[m].renews /\ net[m].fresh THEN "yes" ELSE "over"]]
    /\ UNCHANGED <<r,old,fl,dup,end,h,n,psh>>
(* What was granted comes, or is lost. A member that has an exchange under way, or has made one since, leaves it to that. *)
TakePush(m) == \E x \in psh :
    /\ x.m = m /\ psh' = psh \ {x}
    /\ LET y == l[m]
           known == Bad("push_late") \/ (net[m].st = "none" /\ y.seq = x.seq)
           new == {Local(z,x) : z \in {z \in x.grants : \A w \in y.ls : w.t # z.t}}
       IN \/ l' = l
          \/ /\ y.on /\ y.inc = x.inc /\ (y.gen = x.gen \/ Bad("push_to_former")) /\ known
             /\ l' = [l EXCEPT ![m].have = Max(@,x.tok), ![m].ls = @ \cup new]
    /\ UNCHANGED <<r,old,fl,net,dup,end,h,n>>
--------------------------------------------------------------------------------
(* Leasing again ("claims"): lua/reclaim-7+3.lua. The member with the later incarnation, or the higher token in the same
   incarnation, gets the lane. *)
Below(k,c) == k.inc < c.inc \/ (k.inc = c.inc /\ k.tok < c.t)
Beaten(k,c) == IF Bad("lower_claim_wins") THEN ~Below(k,c) ELSE Below(k,c)
ClaimOne(s,m,c) ==
    LET offs == c.hands \cup c.acks
        others == {k \in s.claims : \E y \in s.p.leases : y.t = k.t /\ y.m # m}
        p0 == Adopt(s.p)
        mine == {y \in Held(p0,m) : [t |-> y.t, inc |-> c.inc, tok |-> c.t] \in s.claims /\ Of(p0,y) \cap offs # {}}
        nothing == [s |-> [s EXCEPT !.p = p0], t |-> 0, held |-> {}]
    IN IF mine # {} /\ ~Bad("claim_forgotten") THEN LET y == CHOOSE y \in mine : TRUE IN [nothing EXCEPT !.t = y.t, !.held = Of(p0,y)]
       ELSE IF (~s.grace /\ ~Bad("claims_after_grace")) \/ \E k \in others : ~Beaten(k,c) THEN nothing
       ELSE LET p1 == EndAll(p0, {y \in p0.leases : \E k \in others : k.t = y.t}, 1)
                e == (CHOOSE o \in offs : \A q \in offs : q <= o) + 1
                unheard == {o \in Off : p1.next <= o /\ o < e}
                p2 == [p1 EXCEPT !.next = Max(@,e), !.avail = IF unheard = {} THEN @ ELSE Max(@,e), !.dec = @ \cup unheard,
                                 !.exc = [o \in Off |-> IF o \in unheard THEN [NoExc EXCEPT !.tok = 0, !.red = TRUE] ELSE @[o]]]
                grab == {o \in offs : p2.exc[o].tok = 0 \/ (Bad("claims_settled") /\ o \in Settled(p2))}
                p3 == Grant(p2, m, Least(offs,0), e, "runs", FALSE)
                p4 == [p3 EXCEPT !.exc = [o \in Off |-> IF o \in grab THEN [NoExc EXCEPT !.tok = p3.tok, !.red = c.red] ELSE @[o]]]
            IN IF grab = {} THEN [s |-> [s EXCEPT !.p = p2, !.holder = {m}], t |-> 0, held |-> {}]
               ELSE [s |-> [s EXCEPT !.p = p4, !.holder = {m}, !.claims = @ \cup {[t |-> p4.tok, inc |-> c.inc, tok |-> c.t]}],
                     t |-> p4.tok, held |-> grab]
(* Every script tells a member that the incarnation has changed. *)
Notice(m) == /\ l[m].on /\ net[m].st = "none" /\ r.ok /\ l[m].inc # r.inc /\ l' = [l EXCEPT ![m] = Lost(@)]
             /\ UNCHANGED <<r,old,fl,net,dup,end,h,n,psh>>
Taken(x,c,a) == \* the member's part: take_over
    IF a.t = 0 THEN [x EXCEPT !.kept = @ \ {c}]
    ELSE [x EXCEPT !.kept = @ \ {c}, !.have = Max(@,a.t),
                   !.hands = @ \cup {<<a.t,o>> : o \in c.hands \cap a.held}, !.acks = @ \cup {<<a.t,o>> : o \in c.acks \cap a.held},
                   !.ls = @ \cup {[t |-> a.t, kind |-> "runs", s |-> 0, e |-> 0, pos |-> 0, seen |-> 0, offs |-> {}, red |-> c.red]}]
(* One script makes all claims of a member. Its reply may be lost; then the request is repeated. *)
Claim(m) ==
    /\ l[m].on /\ l[m].kept # {} /\ net[m].st = "none" /\ r.ok /\ l[m].inc = r.inc /\ UNCHANGED <<old,fl,net,dup,end,psh>>
    /\ IF l[m].gen # r.mem[m].gen THEN l' = [l EXCEPT ![m] = Idle] /\ UNCHANGED <<r,h,n>>
       ELSE \E c \in l[m].kept :
            LET a == ClaimOne(r,m,c)
                wrong == (~r.grace /\ a.t > r.p.tok) \/ \E k \in r.claims : \E y \in Adopt(r.p).leases :
                            y.t = k.t /\ y.m # m /\ (IF a.t > 0 THEN Below([inc |-> c.inc, tok |-> c.t], [k EXCEPT !.t = k.tok])
                                                   ELSE Below(k,c) /\ r.grace)
            IN /\ r' = a.s
               /\ h' = [Granted(a.s.p) EXCEPT !.bad = @ \cup (IF wrong THEN {"claim"} ELSE {})]
               /\ \/ l' = [l EXCEPT ![m] = Taken(@,c,a)] /\ n' = n
                  \/ n.ex < MaxEx /\ n' = [n EXCEPT !.ex = @ + 1] /\ l' = l
--------------------------------------------------------------------------------
Steady == ~Pause /\ n.fail = 0
Current(m,t) == r.ok /\ l[m].inc = r.inc /\ \E y \in Held(r.p,m) : y.t = t
(* The lowest offset is dispatched first, exceptions before the lane. *)
Dispatch(m) == LET x == l[m] IN
    /\ x.on /\ x.run # "no" /\ ~x.frz /\ (Cardinality(x.hands) < Win \/ Bad("window_ignored")) /\ Cardinality(x.acks) <= Bud
    /\ \E y \in x.ls : LET o == Least(Todo(y),N) IN
       /\ o < end /\ o < N /\ (y.kind = "lane" /\ ~Bad("lane_first") => \A z \in x.ls : z.kind = "runs" => z.offs = {})
       /\ \A z \in x.ls : z.kind = "runs" /\ y.kind = "runs" /\ z.offs # {} => o <= Least(z.offs,N)
       /\ l' = [l EXCEPT ![m].hands = @ \cup {<<y.t,o>>},
                         ![m].ls = (@ \ {y}) \cup {[y EXCEPT !.pos = IF y.kind = "lane" THEN o + 1 ELSE @, !.offs = @ \ {o}]}]
       /\ h' = [h EXCEPT
            !.disp = IF n.fail = 0 \/ Current(m,y.t) THEN @ \cup {o} ELSE @,
            !.bad = @ \cup (IF o \in h.cR /\ (~(Pause \/ h.blind) \/ Current(m,y.t)) THEN {"again"} ELSE {})
                      \cup (IF o \in h.disp /\ ~(y.red \/ o < y.seen) /\ (Steady \/ Current(m,y.t)) THEN {"unmarked"} ELSE {})
                      \cup (IF Steady /\ ~Current(m,y.t) THEN {"unheld"} ELSE {})
                      \cup (IF Current(m,y.t) /\ o >= Lease(r.p,y.t).e THEN {"bound"} ELSE {})
                      \cup (IF Steady /\ o \notin h.disp /\ (\E w \in h.disp : w > o) THEN {"order"} ELSE {})]
    /\ UNCHANGED <<r,old,fl,net,dup,end,n,psh>>
Ack(m) == \E v \in l[m].hands : /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].acks = @ \cup {v}]
          /\ h' = [h EXCEPT !.done = @ \cup {v[2]}] /\ UNCHANGED <<r,old,fl,net,dup,end,n,psh>>
Roll(m) == \E v \in l[m].hands : /\ n.roll < MaxRoll /\ n' = [n EXCEPT !.roll = @ + 1]
          /\ l' = [l EXCEPT ![m].hands = @ \ {v}, ![m].rbs = @ \cup {v}] /\ UNCHANGED <<r,old,fl,net,dup,end,h,psh>>
(* The member's deadline passes, or its pings are not answered. *)
Stop(m) == /\ l[m].on /\ (l[m].run # "no" \/ (net[m].st # "none" /\ net[m].fresh))
           /\ n.stop < MaxStop /\ n' = [n EXCEPT !.stop = @ + 1]
           /\ l' = [l EXCEPT ![m].run = "no"]
           /\ net' = IF net[m].st = "none" THEN net ELSE [net EXCEPT ![m].fresh = FALSE]
           /\ UNCHANGED <<r,old,fl,dup,end,h,psh>>
Crash(m) == /\ n.crash < MaxCrash /\ n' = [n EXCEPT !.crash = @ + 1] /\ l[m].on
            /\ l' = [l EXCEPT ![m] = Idle] /\ net' = [net EXCEPT ![m] = NoMsg] /\ dup' = {q \in dup : q.m # m}
            /\ UNCHANGED <<r,old,fl,end,h,psh>>
(* The member detaches: its last exchange reported all verdicts, and the offsets that it has not dispatched go back. *)
Leave(m) == /\ l[m].hands \cup l[m].acks \cup l[m].rbs \cup l[m].kept = {} /\ n.crash < MaxCrash /\ n' = [n EXCEPT !.crash = @ + 1] /\ l[m].on /\ net[m].st = "none" /\ r.ok
            /\ l' = [l EXCEPT ![m] = Idle]
            /\ r' = IF l[m].inc = r.inc /\ r.mem[m].on
                    THEN [r EXCEPT !.p = Adopt(Orphaned(@,m,1)), !.mem[m] = Gone, !.ranks = Without(@,m)] ELSE r
            /\ UNCHANGED <<old,fl,net,dup,end,h,psh>>
--------------------------------------------------------------------------------
(* Member sessions end; servers change. *)
Quiet(m) == l[m].run # "yes" /\ ~(net[m].st = "rep" /\ net[m].fresh /\ net[m].p.code = "OK" /\ net[m].renews)
Expire(m) == /\ r.ok /\ r.mem[m].on /\ (Pause \/ Quiet(m) \/ l[m].inc # r.inc \/ l[m].gen # r.mem[m].gen)
             /\ r' = [r EXCEPT !.p = Orphaned(@,m,2), !.mem[m] = Gone, !.ranks = Without(@,m)]
             /\ UNCHANGED <<old,fl,l,net,dup,end,h,n,psh>>
Replicate == r.ok /\ n.fail < MaxFail /\ old # r /\ old' = r /\ UNCHANGED <<r,fl,l,net,dup,end,h,n,psh>>
Known(s,o) == s.p.exc[o].red \/ o < s.p.seen \/ \E y \in s.p.leases : o \in Of(s.p,y)
(* Another server answers. With an older copy, all leases end, no attempt is counted, and Redis waits for the members that
   are attached in the copy (blind: an attached member is missing there). An empty server waits for one session timeout. *)
Fault == /\ r.ok /\ n.fail < MaxFail /\ n' = [n EXCEPT !.fail = @ + 1] /\ dup' = {}
         /\ \/ /\ LET on == {m \in M : old.mem[m].on} IN
                 /\ r' = [old EXCEPT !.inc = r.inc + 1, !.p = [old.p EXCEPT !.leases = {[y EXCEPT !.orph = IF @ = 0 THEN 1 ELSE @] : y \in @}],
                                     !.mem = R0.mem, !.ranks = <<>>, !.gens = r.gens, !.claims = {}, !.timed = FALSE,
                                     !.awaited = IF Bad("grace_by_copy") THEN {y.m : y \in {y \in old.p.leases : y.orph = 0}} ELSE on,
                                     !.was = on,
                                     !.grace = IF Bad("grace_by_copy") THEN \E y \in old.p.leases : y.orph = 0 ELSE on # {}]
                 /\ h' = [h EXCEPT !.cR = @ \cap Settled(old.p), !.disp = {o \in @ : Known(old,o)}, !.top = [o \in Off |-> 0],
                                   !.blind = @ \/ \E m \in M : r.mem[m].on /\ ~old.mem[m].on]
            \/ /\ r' = [R0 EXCEPT !.inc = r.inc + 1, !.grace = TRUE, !.gens = r.gens,
                                  !.p = [P0 EXCEPT !.dec = 0..(fl-1), !.next = fl, !.avail = fl, !.tok = r.p.tok,
                                                   !.seen = IF Bad("rebuild_forgets") THEN 0 ELSE end]]
               /\ h' = [h EXCEPT !.cR = {o \in @ : o < fl}, !.disp = @ \ {o \in Off : o >= end}, !.top = [o \in Off |-> 0]]
         /\ old' = r' /\ UNCHANGED <<fl,l,net,end,psh>>
EndGrace == /\ r.ok /\ r.grace /\ (Pause \/ \A m \in M : Quiet(m) \/ l[m].inc = r.inc)
            /\ r' = [r EXCEPT !.grace = FALSE, !.awaited = {}, !.timed = TRUE] /\ UNCHANGED <<old,fl,l,net,dup,end,h,n,psh>>
Mirror == r.ok /\ MaxFail > 0 /\ LET f == IF Bad("mirrors_base") THEN Base(r.p) ELSE Floor(r.p) IN fl < f /\ fl' = f /\ UNCHANGED <<r,old,l,net,dup,end,h,n,psh>>
Wait == /\ r.ok /\ (\E o \in Off : r.p.exc[o].wt) /\ r' = [r EXCEPT !.p = Due(@,Off)]
        /\ UNCHANGED <<old,fl,l,net,dup,end,h,n,psh>>
Produce == end < N /\ end' = end + 1 /\ UNCHANGED <<r,old,fl,l,net,dup,h,n,psh>>
Next == \/ \E m \in M : Attach(m) \/ Send(m) \/ Apply(m) \/ LoseReply(m) \/ Recv(m) \/ TakePush(m) \/ Notice(m) \/ Claim(m) \/ Dispatch(m) \/ Ack(m) \/ Roll(m)
                        \/ Stop(m) \/ Crash(m) \/ Leave(m) \/ Expire(m)
        \/ ApplyLate \/ Replicate \/ Fault \/ EndGrace \/ Mirror \/ Wait \/ Produce
Spec == Init /\ [][Next]_vars
--------------------------------------------------------------------------------
(* I1: no offset is settled before an application acknowledged it. *)
I1_SettledTrue == r.ok => Settled(r.p) \subseteq h.done
(* I3: an accepted verdict is given under the newest grant of its offset. *)
I3_Fenced == "fence" \notin h.bad
(* I4: an offset that a confirmed acknowledgement settled is not dispatched again, unless a fault lost that state. *)
I4_SettledStays == "again" \notin h.bad /\ (r.ok => h.cR \subseteq Settled(r.p))
(* I5: at most one member may dispatch, unless an older copy did not know one of them, and a member that dispatches holds the
   lease in Redis. In Redis the leases of the lane never belong to two members. *)
May(m) == l[m].on /\ l[m].run # "no" /\ ~l[m].frz /\ \E y \in l[m].ls : Todo(y) # {}
I5_OneHolder == /\ Pause \/ h.blind \/ Cardinality({m \in M : May(m)}) <= 1
                /\ "unheld" \notin h.bad
                /\ \A y, z \in r.p.leases : y.orph = 0 /\ z.orph = 0 => y.m = z.m
(* I6: first deliveries are in order. *)
I6_InOrder == "order" \notin h.bad
(* I7: messages in flight fit into the window, unconfirmed acknowledgements into the budget. *)
I7_Window == \A m \in M : Cardinality(l[m].hands) <= Win /\ Cardinality(l[m].acks) <= Bud + 1
(* I8: no more attempts are counted for an offset than it had grants, and none for an offset that cannot have been read; a
   message that was dispatched before is marked as redelivered. *)
I8_Attempts == \A o \in Off : r.p.exc[o].att <= h.offers[o] /\ (o >= end => r.p.exc[o].att <= 0)
I8_Marked == "unmarked" \notin h.bad
(* I9: settled, leased and ready offsets are disjoint and together all offsets; messages are dispatched only below a
   confirmed horizon. *)
I9_Conserved == Partitioned(r.p) /\ NoPhantoms(r.p)
I9_Bounded == "bound" \notin h.bad
(* I10: the mirrored floor is never ahead of the settled offsets. *)
I10_Floor == \A o \in Off : o < fl => o \in h.done
(* I15: no new lease is granted before all attached members have claimed, unless one session timeout has passed. *)
I15_WaitedFor == ~r.grace /\ ~r.timed => \A m \in r.was : l[m].kept = {}
(* I16: if two members claim the lane, the member with the later lease gets it; after the grace period no claim is granted. *)
I16_HighestClaim == "claim" \notin h.bad
================================================================================
