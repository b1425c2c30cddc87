-------------------------------- MODULE Settled --------------------------------
(* What survives the loss of Redis: settled offsets live in Redis; their floor is mirrored to Kafka as a group offset whose
   metadata names the subscription's epoch; the journal says where each epoch begins.

   Modelled: kafkadur_coordinators/topics.py (mirror_floors, floors), lifecycle.py and changes.py (rebuild, amend with
   places), lua/rebuild-6.lua, partitions-6+3.lua, install-6.lua.
   - Mirrors, each of which reads the floor and commits it much later: commits of a group are not fenced, the last one counts.
   - Two who rebuild: the right (on this very server), an incarnation record, the floor read, the partition laid, installed.
     Each step may come late; the right may run out.
   - Seeks, back and forward: CHANGING, a record with the place to stand at and the next epoch, the partition laid, installed.
   Settled offsets are a floor and what is settled above it, of one partition.
   Not modelled: leases (Lane.tla), which of two changes wins (Define.tla), several partitions, topics made anew. *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS W, X,       \* who mirrors, who rebuilds (model values)
          N,          \* offsets 0..N-1
          Seeks,      \* where a seek may go
          MaxLog, MaxFault, MaxSeek, MaxCommit,
          Defects
Off == 0..(N-1)
Bad(d) == d \in Defects
VARIABLES red,   \* Redis: ok, set (settled), ep, ver (place of the record in force), chg, reb (token of the rebuild), kept
          old,   \* another server's copy
          log,   \* the journal: [k, ep, start]
          grp,   \* the group offset: [f, ep]
          buf,   \* mirrors: a floor read and not yet committed
          rec, seek,
          truth, \* history: settled by an application since the epoch in force began, or before where it began
          epoch, \* history: the epoch in force by the journal
          n
vars == <<red,old,log,grp,buf,rec,seek,truth,epoch,n>>
None == [st |-> "none"]
Upto(k) == {o \in Off : o < k}
FloorOf(S) == LET U == Off \ S IN IF U = {} THEN N ELSE CHOOSE o \in U : \A q \in U : o <= q
R0 == [ok |-> TRUE, set |-> {}, ep |-> 0, chg |-> FALSE, reb |-> 0, kept |-> FALSE]
Init == /\ red = R0 /\ old = R0 /\ log = <<[k |-> "def", ep |-> 0, start |-> 0]>> /\ grp = [f |-> 0, ep |-> -1]
        /\ buf = [w \in W |-> None] /\ rec = [x \in X |-> None] /\ seek = None /\ truth = {} /\ epoch = 0
        /\ n = [fault |-> 0, seek |-> 0, lock |-> 0, commit |-> 0]
InForce(k) == LET D == {i \in 1..k : log[i].k = "def"} IN log[CHOOSE i \in D : \A j \in D : j <= i]
Now == InForce(Len(log))
--------------------------------------------------------------------------------
Ack == /\ red.ok /\ ~red.chg /\ \E o \in Off \ red.set :
             /\ red' = [red EXCEPT !.set = @ \cup {o}]
             /\ truth' = IF red.ep = epoch THEN truth \cup {o} ELSE truth
       /\ UNCHANGED <<old,log,grp,buf,rec,seek,epoch,n>>
Look(w) == /\ buf[w] = None /\ red.ok /\ n.commit < MaxCommit /\ n' = [n EXCEPT !.commit = @ + 1]
           /\ buf' = [buf EXCEPT ![w] = [st |-> "w", ep |-> red.ep,
                        f |-> IF Bad("mirrors_next") /\ red.set # {} THEN (CHOOSE o \in red.set : \A q \in red.set : q <= o) + 1
                              ELSE FloorOf(red.set)]]
           /\ UNCHANGED <<red,old,log,grp,rec,seek,truth,epoch>>
Commit(w) == /\ buf[w].st = "w" /\ grp' = [f |-> buf[w].f, ep |-> buf[w].ep] /\ buf' = [buf EXCEPT ![w] = None]
             /\ UNCHANGED <<red,old,log,rec,seek,truth,epoch,n>>
(* a process ends with what it has not committed *)
Forget(w) == buf[w] # None /\ buf' = [buf EXCEPT ![w] = None] /\ UNCHANGED <<red,old,log,grp,rec,seek,truth,epoch,n>>
--------------------------------------------------------------------------------
Replicate == red.ok /\ n.fault < MaxFault /\ old # red /\ old' = red /\ UNCHANGED <<red,log,grp,buf,rec,seek,truth,epoch,n>>
(* the server is empty, or another one with an older copy: then Redis goes on with what it has (Kept) if that is in force *)
Fault == /\ red.ok /\ n.fault < MaxFault /\ n' = [n EXCEPT !.fault = @ + 1]
         /\ red' \in {[old EXCEPT !.ok = FALSE, !.reb = 0, !.kept = TRUE], [R0 EXCEPT !.ok = FALSE, !.ep = -1]}
         /\ UNCHANGED <<old,log,grp,buf,rec,seek,truth,epoch>>
Take(x) == /\ ~red.ok /\ rec[x] = None /\ n.lock < MaxFault + 1 /\ n' = [n EXCEPT !.lock = @ + 1]
           /\ red' = [red EXCEPT !.reb = n.lock + 1]
           /\ rec' = [rec EXCEPT ![x] = [st |-> "fence", tok |-> n.lock + 1, kept |-> red.kept]]
           /\ UNCHANGED <<old,log,grp,buf,seek,truth,epoch>>
Fence(x) == /\ rec[x].st = "fence" /\ Len(log) < MaxLog /\ log' = Append(log, [k |-> "inc", ep |-> 0, start |-> 0])
            /\ rec' = [rec EXCEPT ![x].st = "read"] /\ UNCHANGED <<red,old,grp,buf,seek,truth,epoch,n>>
(* the record in force, and the mirrored floor if it is this epoch's *)
Read(x) == /\ rec[x].st = "read"
           /\ LET d == Now  good == grp.ep = d.ep \/ (Bad("any_epoch") /\ grp.ep >= 0) IN
              rec' = [rec EXCEPT ![x] = [st |-> "lay", tok |-> @.tok, kept |-> @.kept, ep |-> d.ep,
                                         f |-> IF good THEN grp.f ELSE d.start]]
           /\ UNCHANGED <<red,old,log,grp,buf,seek,truth,epoch,n>>
Right(x) == Bad("right_unasked") \/ (~red.ok /\ red.reb = rec[x].tok)
Lay(x) == /\ rec[x].st = "lay"
          /\ red' = IF Right(x) /\ ~(rec[x].kept /\ (red.ep = rec[x].ep \/ Bad("copy_believed"))) THEN [red EXCEPT !.set = Upto(rec[x].f), !.ep = rec[x].ep] ELSE red
          /\ rec' = [rec EXCEPT ![x].st = "install"] /\ UNCHANGED <<old,log,grp,buf,seek,truth,epoch,n>>
Install(x) == /\ rec[x].st = "install" /\ rec' = [rec EXCEPT ![x] = None]
              /\ red' = IF Right(x) THEN [red EXCEPT !.ok = TRUE, !.reb = 0, !.chg = FALSE, !.kept = FALSE] ELSE red
              /\ UNCHANGED <<old,log,grp,buf,seek,truth,epoch,n>>
--------------------------------------------------------------------------------
(* a seek. A record that a newer incarnation lies before is void (Define.tla): und is where the journal ended before it *)
NewerInc(i) == \E j \in (i+1)..Len(log) : log[j].k = "inc"
SeekBegin == /\ red.ok /\ ~red.chg /\ seek = None /\ n.seek < MaxSeek /\ n' = [n EXCEPT !.seek = @ + 1]
             /\ \E at \in Seeks : seek' = [st |-> "write", und |-> Len(log), at |-> at, ep |-> IF Bad("epoch_stays") THEN red.ep ELSE red.ep + 1]
             /\ red' = [red EXCEPT !.chg = TRUE]
             /\ UNCHANGED <<old,log,grp,buf,rec,truth,epoch>>
SeekWrite == /\ seek.st = "write" /\ Len(log) < MaxLog
             /\ IF NewerInc(seek.und) THEN /\ seek' = None /\ UNCHANGED <<log,epoch,truth>>
                ELSE /\ log' = Append(log, [k |-> "def", ep |-> seek.ep, start |-> seek.at])
                     /\ seek' = [seek EXCEPT !.st = "lay", !.und = Len(log) + 1] /\ epoch' = seek.ep /\ truth' = Upto(seek.at)
             /\ UNCHANGED <<red,old,grp,buf,rec,n>>
SeekLay == /\ seek.st = "lay" /\ seek' = None
           /\ red' = IF red.ok /\ red.chg THEN [red EXCEPT !.chg = FALSE, !.ep = seek.ep, !.set = Upto(seek.at)] ELSE red
           /\ UNCHANGED <<old,log,grp,buf,rec,truth,epoch,n>>
(* whoever finds a change that its owner left finishes it *)
Resolve == /\ red.ok /\ red.chg /\ seek = None /\ red' = [red EXCEPT !.chg = FALSE, !.ep = Now.ep,
                                                                      !.set = IF Now.ep = red.ep THEN @ ELSE Upto(Now.start)]
           /\ UNCHANGED <<old,log,grp,buf,rec,seek,truth,epoch,n>>
SeekStop == seek # None /\ seek' = None /\ UNCHANGED <<red,old,log,grp,buf,rec,truth,epoch,n>>
Next == \/ Ack \/ Replicate \/ Fault \/ SeekBegin \/ SeekWrite \/ SeekLay \/ SeekStop \/ Resolve
        \/ \E w \in W : Look(w) \/ Commit(w) \/ Forget(w)
        \/ \E x \in X : Take(x) \/ Fence(x) \/ Read(x) \/ Lay(x) \/ Install(x)
Spec == Init /\ [][Next]_vars
Perms == Permutations(W) \cup Permutations(X)
--------------------------------------------------------------------------------
Serving == red.ok /\ ~red.chg
(* I1: what Redis calls settled was settled by an application in the epoch in force, or lies before where that began. *)
I1_SettledTrue == Serving /\ red.ep = epoch => red.set \subseteq truth
(* I10: a recovered floor is not ahead of the true one; so what was mirrored for the epoch in force is settled. *)
I10_Floor == grp.ep = epoch => Upto(grp.f) \subseteq truth
(* What is served is the epoch in force: a seek that was confirmed is not undone by the loss of Redis. *)
EpochInForce == Serving => red.ep = epoch
================================================================================
