-------------------------------- MODULE Commit ---------------------------------
(* Exactly once from topic to topic: a transacted session settles what it received in the transaction of Kafka that what it
   sent is in, and only then tells Redis; whoever takes over looks up what was committed.

   Modelled: kafkadur/transactions.py, aio/session.py, kafkadur_coordinators/transactions.py, rebuilding.py (sessions), lifecycle.py
   (records of sessions), lua/attach-6.lua, include/members.lua (doubt), rebuild-6.lua, install-6.lua, reincarnate-6.lua.
   - Sessions, each with one member: they attach, are registered in the journal, get offsets, look once a client whether the journal
     knows a later incarnation, commit, tell Redis, move what they settled into the journal and then remove it from the topic,
     leave in order, die; and are taken for dead while they live.
   - Kafka: the epoch of each transactional id; a client with an older one commits nothing. One that is made anew has a new epoch.
   - Servers: a fault brings another one, empty or with what the one before had; the old one goes on with whoever is connected to it.
   - Who rebuilds: the right on this very server, an incarnation record, the journal read, the sessions in it fenced, the topic read,
     copied into the journal, the journal read once more, installed, the records of the sessions and the topic's removed. Each
     step may come late; the right may run out.
   Not modelled: lanes, attempts, claims (Lane.tla, Shared.tla, Claims.tla); checkpoints of what others settle (Settled.tla); a
   commit whose answer is lost, which ends as a client made anew that first looks whether it was committed. *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS T, X,       \* sessions, who rebuilds (model values)
          N,          \* offsets 1..N
          MaxLog, MaxFault, MaxEpoch, MaxDie,
          Defects
Off == 1..N
Bad(d) == d \in Defects
S == 1..(MaxFault + 1)
None == [st |-> "none"]
Nobody == "nobody"
VARIABLES srv,   \* servers: up (no, lost, kept, ok), inc, doubt (0, 1, 2), att, lease, set (settled), reb (who rebuilds)
          cur,   \* the newest
          log,   \* the journal: [k (inc, ses, uns, cp), ...]
          top,   \* the topic of transactions: what each session has committed and nobody removed
          ep,    \* Kafka: the newest epoch of each transactional id
          mem,   \* members: st (out, att, in, bye, dead), srv, inc, hand, ack
          cl,    \* clients: ep, look, open
          mv,    \* what is being moved into the journal
          rec,   \* who rebuilds
          done,  \* history: how often each offset was committed
          n
vars == <<srv,cur,log,top,ep,mem,cl,mv,rec,done,n>>
Free == [o \in Off |-> Nobody]
R0 == [up |-> "ok", inc |-> 0, doubt |-> 0, att |-> {}, lease |-> Free, set |-> {}, reb |-> Nobody]
Out == [st |-> "out", srv |-> 1, inc |-> 0, hand |-> {}, ack |-> {}]
Init == /\ srv = [s \in S |-> IF s = 1 THEN R0 ELSE [R0 EXCEPT !.up = "no"]] /\ cur = 1 /\ log = <<>>
        /\ top = [t \in T |-> {}] /\ ep = [t \in T |-> 0] /\ mem = [t \in T |-> Out]
        /\ cl = [t \in T |-> [ep |-> 0, look |-> FALSE, open |-> {}]] /\ mv = [t \in T |-> {}]
        /\ rec = [x \in X |-> None] /\ done = [o \in Off |-> 0] /\ n = [die |-> 0]
Room == Len(log) < MaxLog
Newest(k) == LET I == {i \in 1..k : log[i].k = "inc"} IN IF I = {} THEN 0 ELSE CHOOSE i \in I : \A j \in I : j <= i
Copied(k) == UNION {log[i].set : i \in {i \in 1..k : log[i].k = "cp"}}
\* registered, by the first k records: <<session, incarnation>>
Registered(k) == {<<log[i].t, log[i].inc>> : i \in {i \in 1..k : log[i].k = "ses" /\
                    ~\E j \in (i+1)..k : log[j].k = "uns" /\ <<log[i].t, log[i].inc>> \in log[j].who}}
Serves(i, t) == srv[i].up = "ok" /\ srv[i].doubt # 2 /\ t \in srv[i].att /\ srv[i].inc = mem[t].inc
\* a member is taken off the list without having left in order
Off1(r, t) == [r EXCEPT !.att = @ \ {t}, !.lease = [o \in Off |-> IF @[o] = t THEN Nobody ELSE @[o]],
                        !.doubt = IF Bad("no_doubt") THEN @ ELSE 1]
Anew(t) == /\ ep[t] < MaxEpoch /\ ep' = [ep EXCEPT ![t] = @ + 1]
           /\ cl' = [cl EXCEPT ![t] = [ep |-> ep[t] + 1, look |-> Bad("no_look"), open |-> {}]]

\* ---- sessions
Attach(t, i) ==
  /\ mem[t].st = "out" /\ srv[i].up = "ok" /\ srv[i].doubt # 2
  /\ LET r == IF t \in srv[i].att THEN Off1(srv[i], t) ELSE srv[i] IN srv' = [srv EXCEPT ![i] = [r EXCEPT !.att = @ \cup {t}]]
  /\ mem' = [mem EXCEPT ![t] = [Out EXCEPT !.st = IF Bad("no_record") THEN "in" ELSE "att", !.srv = i, !.inc = srv[i].inc]]
  /\ UNCHANGED <<cur,log,top,ep,cl,mv,rec,done,n>>
Register(t) ==
  /\ mem[t].st = "att" /\ Room
  /\ log' = Append(log, [k |-> "ses", t |-> t, inc |-> mem[t].inc])
  /\ mem' = [mem EXCEPT ![t].st = "in"] /\ UNCHANGED <<srv,cur,top,ep,cl,mv,rec,done,n>>
Grant(t, o) == LET i == mem[t].srv IN
  /\ mem[t].st = "in" /\ Serves(i, t) /\ srv[i].doubt = 0 /\ srv[i].lease[o] = Nobody /\ o \notin srv[i].set
  /\ srv' = [srv EXCEPT ![i].lease[o] = t] /\ mem' = [mem EXCEPT ![t].hand = @ \cup {o}]
  /\ UNCHANGED <<cur,log,top,ep,cl,mv,rec,done,n>>
Look(t) ==
  /\ mem[t].st = "in" /\ ~cl[t].look
  /\ IF Newest(Len(log)) > mem[t].inc
     THEN mem' = [mem EXCEPT ![t] = [Out EXCEPT !.srv = mem[t].srv]] /\ UNCHANGED cl
     ELSE cl' = [cl EXCEPT ![t].look = TRUE] /\ UNCHANGED mem
  /\ UNCHANGED <<srv,cur,log,top,ep,mv,rec,done,n>>
Open(t) ==
  /\ mem[t].st = "in" /\ cl[t].look /\ cl[t].open = {} /\ mem[t].hand \ mem[t].ack # {}
  /\ cl' = [cl EXCEPT ![t].open = mem[t].hand \ mem[t].ack]
  /\ mem' = IF Bad("redis_first") THEN [mem EXCEPT ![t].ack = mem[t].hand] ELSE mem
  /\ UNCHANGED <<srv,cur,log,top,ep,mv,rec,done,n>>
Commit(t) ==
  /\ mem[t].st = "in" /\ cl[t].open # {} /\ cl[t].ep = ep[t]
  /\ top' = [top EXCEPT ![t] = @ \cup cl[t].open] /\ done' = [o \in Off |-> done[o] + (IF o \in cl[t].open THEN 1 ELSE 0)]
  /\ mem' = [mem EXCEPT ![t].ack = @ \cup cl[t].open] /\ cl' = [cl EXCEPT ![t].open = {}]
  /\ UNCHANGED <<srv,cur,log,ep,mv,rec,n>>
Ack(t) == LET i == mem[t].srv IN
  /\ mem[t].st = "in" /\ mem[t].ack # {} /\ Serves(i, t)
  /\ srv' = [srv EXCEPT ![i].set = @ \cup mem[t].ack,
                        ![i].lease = [o \in Off |-> IF o \in mem[t].ack THEN Nobody ELSE @[o]]]
  /\ mem' = [mem EXCEPT ![t].hand = @ \ mem[t].ack, ![t].ack = {}] /\ UNCHANGED <<cur,log,top,ep,cl,mv,rec,done,n>>
\* it notices that it lost its leases, or its transaction: rolled back, with a new client
Lose(t) ==
  /\ mem[t].st \in {"att", "in"} /\ (~Serves(mem[t].srv, t) \/ cl[t].ep # ep[t])
  /\ mem' = [mem EXCEPT ![t] = [Out EXCEPT !.srv = mem[t].srv]] /\ Anew(t)
  /\ UNCHANGED <<srv,cur,log,top,mv,rec,done,n>>
Move(t) ==
  /\ mem[t].st \in {"in", "bye"} /\ mv[t] = {} /\ top[t] # {} /\ Room /\ mv' = [mv EXCEPT ![t] = top[t]]
  /\ IF Bad("remove_first") THEN top' = [top EXCEPT ![t] = {}] /\ UNCHANGED log
     ELSE log' = Append(log, [k |-> "cp", set |-> top[t]]) /\ UNCHANGED top
  /\ UNCHANGED <<srv,cur,ep,mem,cl,rec,done,n>>
Moved(t) ==
  /\ mem[t].st # "dead" /\ mv[t] # {} /\ (Bad("remove_first") => Room) /\ mv' = [mv EXCEPT ![t] = {}]
  /\ IF Bad("remove_first") THEN log' = Append(log, [k |-> "cp", set |-> mv[t]]) /\ UNCHANGED top
     ELSE top' = [top EXCEPT ![t] = @ \ mv[t]] /\ UNCHANGED log
  /\ UNCHANGED <<srv,cur,ep,mem,cl,rec,done,n>>
Leave(t) == LET i == mem[t].srv IN
  /\ mem[t].st = "in" /\ cl[t].open = {} /\ mem[t].ack = {} /\ Serves(i, t)
  /\ srv' = [srv EXCEPT ![i].att = @ \ {t}, ![i].lease = [o \in Off |-> IF @[o] = t THEN Nobody ELSE @[o]]]
  /\ mem' = [mem EXCEPT ![t].st = "bye", ![t].hand = {}] /\ UNCHANGED <<cur,log,top,ep,cl,mv,rec,done,n>>
End(t) ==
  /\ mem[t].st = "bye" /\ mv[t] = {} /\ (top[t] = {} \/ Bad("end_early")) /\ Room
  /\ log' = Append(log, [k |-> "uns", who |-> {<<t, mem[t].inc>>}])
  /\ mem' = [mem EXCEPT ![t] = [Out EXCEPT !.st = "dead"]] /\ UNCHANGED <<srv,cur,top,ep,cl,mv,rec,done,n>>
Die(t) ==
  /\ mem[t].st # "dead" /\ n.die < MaxDie /\ n' = [n EXCEPT !.die = @ + 1]
  /\ mem' = [mem EXCEPT ![t].st = "dead", ![t].hand = {}, ![t].ack = {}]
  /\ cl' = [cl EXCEPT ![t].open = {}] /\ UNCHANGED <<srv,cur,log,top,ep,mv,rec,done>>

\* ---- servers
Reap(i, t) ==
  /\ srv[i].up = "ok" /\ srv[i].doubt # 2 /\ t \in srv[i].att /\ srv' = [srv EXCEPT ![i] = Off1(@, t)]
  /\ UNCHANGED <<cur,log,top,ep,mem,cl,mv,rec,done,n>>
Fault(kept) ==
  /\ cur <= MaxFault /\ cur' = cur + 1
  /\ srv' = [srv EXCEPT ![cur + 1] = IF kept /\ srv[cur].up = "ok" THEN [srv[cur] EXCEPT !.up = "kept", !.reb = Nobody]
                                     ELSE [R0 EXCEPT !.up = "lost"]]
  /\ UNCHANGED <<log,top,ep,mem,cl,mv,rec,done,n>>

\* ---- who rebuilds
Take(x, i) ==
  /\ rec[x].st = "none" /\ (srv[i].up \in {"lost", "kept"} \/ (srv[i].up = "ok" /\ srv[i].doubt > 0))
  /\ srv' = [srv EXCEPT ![i].reb = x, ![i].doubt = IF srv[i].up = "ok" THEN 2 ELSE @]
  /\ rec' = [rec EXCEPT ![x] = [st |-> "taken", i |-> i, b |-> 0, who |-> {}, cps |-> {}, found |-> {}]]
  /\ UNCHANGED <<cur,log,top,ep,mem,cl,mv,done,n>>
Begin(x) ==
  /\ rec[x].st = "taken" /\ Room /\ log' = Append(log, [k |-> "inc"])
  /\ rec' = [rec EXCEPT ![x].st = "begun", ![x].b = Len(log) + 1] /\ UNCHANGED <<srv,cur,top,ep,mem,cl,mv,done,n>>
Read(x) ==
  /\ rec[x].st = "begun"
  /\ rec' = [rec EXCEPT ![x].st = "read", ![x].who = {w \in Registered(Len(log)) : w[2] < rec[x].b}, ![x].cps = Copied(Len(log))]
  /\ UNCHANGED <<srv,cur,log,top,ep,mem,cl,mv,done,n>>
Fence(x) == LET F == IF Bad("no_fence") THEN {} ELSE {w[1] : w \in rec[x].who} IN
  /\ rec[x].st = "read" /\ \A t \in F : ep[t] < MaxEpoch
  /\ ep' = [t \in T |-> IF t \in F THEN ep[t] + 1 ELSE ep[t]] /\ rec' = [rec EXCEPT ![x].st = "fenced"]
  /\ UNCHANGED <<srv,cur,log,top,mem,cl,mv,done,n>>
Find(x) ==
  /\ rec[x].st = "fenced"
  /\ rec' = [rec EXCEPT ![x].st = "found", ![x].found = IF rec[x].who = {} THEN {} ELSE UNION {top[t] : t \in T}]
  /\ UNCHANGED <<srv,cur,log,top,ep,mem,cl,mv,done,n>>
Copy(x) ==
  /\ rec[x].st = "found" /\ (rec[x].found = {} \/ Room)
  /\ log' = IF rec[x].found = {} THEN log ELSE Append(log, [k |-> "cp", set |-> rec[x].found])
  /\ rec' = [rec EXCEPT ![x].st = "copied"] /\ UNCHANGED <<srv,cur,top,ep,mem,cl,mv,done,n>>
Install(x) == LET r == rec[x] IN LET i == r.i IN
  LET said == IF Bad("journal_first") THEN r.cps \cup r.found ELSE Copied(Len(log)) IN
  /\ r.st = "copied"
  /\ IF srv[i].reb = x /\ (srv[i].up \in {"lost", "kept"} \/ srv[i].doubt = 2)
     THEN /\ srv' = [srv EXCEPT ![i] = [R0 EXCEPT !.inc = r.b,
                       !.set = (IF srv[i].up = "lost" THEN {} ELSE srv[i].set) \cup said]]
          /\ rec' = [rec EXCEPT ![x].st = "there"]
     ELSE rec' = [rec EXCEPT ![x] = IF Bad("remove_refused") THEN [@ EXCEPT !.st = "there"] ELSE None] /\ UNCHANGED srv
  /\ UNCHANGED <<cur,log,top,ep,mem,cl,mv,done,n>>
Remove(x) == LET who == IF Bad("remove_later") THEN Registered(Len(log)) ELSE rec[x].who IN
  /\ rec[x].st = "there" /\ (who = {} \/ Room)
  /\ log' = IF who = {} THEN log ELSE Append(log, [k |-> "uns", who |-> who])
  /\ top' = [t \in T |-> top[t] \ rec[x].found] /\ rec' = [rec EXCEPT ![x] = None]
  /\ UNCHANGED <<srv,cur,ep,mem,cl,mv,done,n>>

Next == \/ \E t \in T : \/ Register(t) \/ Look(t) \/ Open(t) \/ Commit(t) \/ Ack(t) \/ Lose(t) \/ Move(t) \/ Moved(t)
                        \/ Leave(t) \/ End(t) \/ Die(t) \/ \E o \in Off : Grant(t, o)
                        \/ \E i \in S : Attach(t, i) \/ Reap(i, t)
        \/ \E kept \in BOOLEAN : Fault(kept)
        \/ \E x \in X : \/ Begin(x) \/ Read(x) \/ Fence(x) \/ Find(x) \/ Copy(x) \/ Install(x) \/ Remove(x)
                        \/ \E i \in S : Take(x, i)
Spec == Init /\ [][Next]_vars
Perms == Permutations(T) \cup Permutations(X)
\* what was received is committed with what was sent once at most
I17_Once == \A o \in Off : done[o] <= 1
\* nothing is settled that was not committed
I1_SettledTrue == \A i \in S : srv[i].up = "ok" => \A o \in srv[i].set : done[o] >= 1
================================================================================
