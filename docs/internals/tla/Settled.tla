-------------------------------- MODULE Settled --------------------------------
(* Settled offsets after the loss of Redis. Settled offsets are stored in Redis. Checkpoints of them are written to the
   journal, and their floor is mirrored as a group offset whose metadata names the subscription's epoch. The journal contains
   the start of each epoch and all incarnations.

   Modelled: kafkadur/runtime/checkpoint_thread.py, kafkadur_coordinators/journal/checkpoints.py, rebuilding.py, topic.py (incarnations), topics.py
   (mirror_floors, floors), changes.py (amend with places), lua/rebuild-7.lua, partitions-7+3.lua, install-7.lua,
   reincarnate-7.lua, inspect-7+3.lua.
   - Servers: after each fault another server is used, empty or with an older copy. The earlier server continues: it accepts
     acknowledgements of members that are still connected to it, and answers the writers of checkpoints.
   - Writers: a writer reads a server, later appends the record under the key of writer, incarnation and epoch, and later
     reads the record back. The record is confirmed if no incarnation of the subscription newer than the one that was read
     lies before it. Acknowledgements may wait for any offset in it.
   - Mirrors: a mirror reads the floor and commits it much later. Commits of a group are not fenced; the last one counts.
     The floor is used if there is no checkpoint.
   - Rebuilding processes take the right to rebuild (on this server), append an incarnation record, read the journal to its
     end, unite it with the data that the server kept, write the partition and install. Each step may be late, and the right
     may expire.
   - Seeks, back and forward: set CHANGING, append a record with the new position and the next epoch, write the partition,
     install.
   - Incarnations of another subscription of the same shard.
   Settled offsets are a set of offsets of one partition. The number of an incarnation is the position of its record.
   Checkpoints are stored beside the log, because only the records before a checkpoint matter, and these are known when it is
   appended.
   Not modelled: leases (Lane.tla), which of two changes wins (Define.tla), several partitions, topics that are deleted and
   created again, records that are too large; the removal of old checkpoints (Collect.tla). *)
EXTENDS Integers, Sequences, FiniteSets, TLC
CONSTANTS W, X,       \* writers and mirrors, rebuilding processes (model values)
          N,          \* offsets 0..N-1
          Seeks,      \* possible targets of a seek
          MaxLog, MaxFault, MaxSeek, MaxCommit, MaxWrite, MaxOther,
          Defects
Off == 0..(N-1)
Bad(d) == d \in Defects
S == 1..(MaxFault + 1)
VARIABLES srv,   \* servers: up (no, lost, ok), inc, ep, set (settled), chg, reb (token of the rebuild), kept
          cur,   \* the newest server
          old,   \* a copy of its state
          log,   \* the journal: [k (def, inc, oth), ep, start]
          cps,   \* checkpoints in the journal: [w, inc, ep, set]
          grp,   \* the group offset: [f, ep]
          buf,   \* mirrors: a floor that was read and is not committed yet
          cp,    \* writers: a checkpoint under way
          rec, seek,
          truth, \* history: offsets settled by an application since the epoch in force began, and offsets before its start
          epoch, \* history: the epoch in force according to the journal
          conf,  \* history: acknowledgements confirmed at the level journal: [ep, inc, o]
          bad,   \* history: violations
          n
vars == <<srv,cur,old,log,cps,grp,buf,cp,rec,seek,truth,epoch,conf,bad,n>>
None == [st |-> "none"]
Upto(k) == {o \in Off : o < k}
FloorOf(Q) == LET U == Off \ Q IN IF U = {} THEN N ELSE CHOOSE o \in U : \A q \in U : o <= q
R0 == [up |-> "ok", inc |-> 0, ep |-> 0, set |-> {}, chg |-> FALSE, reb |-> 0, kept |-> FALSE]
Empty == [R0 EXCEPT !.up = "lost", !.ep = -1]
Init == /\ srv = [s \in S |-> IF s = 1 THEN R0 ELSE [R0 EXCEPT !.up = "no"]] /\ cur = 1 /\ old = R0
        /\ log = <<[k |-> "def", ep |-> 0, start |-> 0]>> /\ cps = {} /\ grp = [f |-> 0, ep |-> -1]
        /\ buf = [w \in W |-> None] /\ cp = [w \in W |-> None] /\ rec = [x \in X |-> None] /\ seek = None
        /\ truth = {} /\ epoch = 0 /\ conf = {} /\ bad = {}
        /\ n = [fault |-> 0, seek |-> 0, lock |-> 0, commit |-> 0, write |-> 0, other |-> 0]
InForce(k) == LET D == {i \in 1..k : log[i].k = "def"} IN log[CHOOSE i \in D : \A j \in D : j <= i]
Now == InForce(Len(log))
Begins(i) == log[i].k = "inc" \/ (Bad("others_count") /\ log[i].k = "oth")
(* Whether an incarnation of this subscription with a higher number exists in the log after position `from`. *)
Newer(inc,from) == \E j \in (inc+1)..Len(log) : j > from /\ Begins(j)
Newest(s) == \A j \in (srv[s].inc + 1)..Len(log) : log[j].k # "inc"
--------------------------------------------------------------------------------
Ack(s) == /\ srv[s].up = "ok" /\ ~srv[s].chg /\ \E o \in Off \ srv[s].set :
             /\ srv' = [srv EXCEPT ![s].set = @ \cup {o}]
             /\ truth' = IF srv[s].ep = epoch THEN truth \cup {o} ELSE truth
          /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,rec,seek,epoch,conf,bad,n>>
Look(w,s) == /\ buf[w] = None /\ srv[s].up = "ok" /\ n.commit < MaxCommit /\ n' = [n EXCEPT !.commit = @ + 1]
             /\ buf' = [buf EXCEPT ![w] = [st |-> "w", ep |-> srv[s].ep,
                        f |-> LET T == srv[s].set IN
                              IF Bad("mirrors_next") /\ T # {} THEN (CHOOSE o \in T : \A q \in T : q <= o) + 1
                              ELSE FloorOf(T)]]
             /\ UNCHANGED <<srv,cur,old,log,cps,grp,cp,rec,seek,truth,epoch,conf,bad>>
Commit(w) == /\ buf[w].st = "w" /\ grp' = [f |-> buf[w].f, ep |-> buf[w].ep] /\ buf' = [buf EXCEPT ![w] = None]
             /\ UNCHANGED <<srv,cur,old,log,cps,cp,rec,seek,truth,epoch,conf,bad,n>>
--------------------------------------------------------------------------------
(* Writers. The epoch is the one of the state that is read, not the one that the writer knows. *)
Inspect(w,s) == /\ cp[w] = None /\ srv[s].up = "ok" /\ srv[s].set # {} /\ n.write < MaxWrite
                /\ n' = [n EXCEPT !.write = @ + 1]
                /\ cp' = [cp EXCEPT ![w] =
                      [st |-> "append", inc |-> srv[s].inc, set |-> srv[s].set, clean |-> TRUE,
                       ep |-> IF Bad("epoch_unasked") THEN epoch ELSE srv[s].ep,
                       wait |-> IF Bad("incarnation_unasked") THEN UNION {srv[q].set : q \in {q \in S : srv[q].up = "ok"}}
                                ELSE srv[s].set]]
                /\ UNCHANGED <<srv,cur,old,log,cps,grp,buf,rec,seek,truth,epoch,conf,bad>>
KeyOf(w) == IF Bad("one_key") THEN 0 ELSE cp[w].inc
Write(w) == /\ cp[w].st = "append"
            /\ cps' = {c \in cps : ~(c.w = w /\ c.inc = KeyOf(w) /\ c.ep = cp[w].ep)}
                      \cup {[w |-> w, inc |-> KeyOf(w), ep |-> cp[w].ep, set |-> cp[w].set]}
            /\ \E from \in (IF Bad("followed_from_first") THEN 0..Len(log) ELSE {0}) :
                  cp' = [cp EXCEPT ![w].st = "back", ![w].clean = ~Newer(cp[w].inc,from) \/ Bad("not_read_back")]
            /\ UNCHANGED <<srv,cur,old,log,grp,buf,rec,seek,truth,epoch,conf,bad,n>>
Confirm(w) == /\ cp[w].st = "back" /\ cp' = [cp EXCEPT ![w] = None]
              /\ conf' = IF cp[w].clean THEN conf \cup {[ep |-> cp[w].ep, inc |-> cp[w].inc, o |-> o] : o \in cp[w].wait} ELSE conf
              /\ bad' = IF ~cp[w].clean /\ \A j \in (cp[w].inc+1)..Len(log) : log[j].k # "inc" THEN bad \cup {"blocked"} ELSE bad
              /\ UNCHANGED <<srv,cur,old,log,cps,grp,buf,rec,seek,truth,epoch,n>>
(* A process ends, and loses the floors and checkpoints that it has not committed or appended. *)
Forget(w) == /\ (buf[w] # None \/ cp[w] # None) /\ buf' = [buf EXCEPT ![w] = None] /\ cp' = [cp EXCEPT ![w] = None]
             /\ UNCHANGED <<srv,cur,old,log,cps,grp,rec,seek,truth,epoch,conf,bad,n>>
--------------------------------------------------------------------------------
Replicate == /\ srv[cur].up = "ok" /\ n.fault < MaxFault /\ old # srv[cur] /\ old' = srv[cur]
             /\ UNCHANGED <<srv,cur,log,cps,grp,buf,cp,rec,seek,truth,epoch,conf,bad,n>>
(* Another server answers: empty, or with an older copy. In the second case (kept), it continues with its data if their epoch
   is in force. *)
Fault == /\ n.fault < MaxFault /\ n' = [n EXCEPT !.fault = @ + 1] /\ cur' = cur + 1
         /\ \E r \in {[old EXCEPT !.up = "lost", !.reb = 0, !.kept = TRUE], Empty} : srv' = [srv EXCEPT ![cur + 1] = r]
         /\ UNCHANGED <<old,log,cps,grp,buf,cp,rec,seek,truth,epoch,conf,bad>>
Take(x) == /\ rec[x] = None /\ n.lock < MaxFault + 1 /\ n' = [n EXCEPT !.lock = @ + 1]
           /\ \E s \in S : /\ srv[s].up = "lost"
                           /\ srv' = [srv EXCEPT ![s].reb = n.lock + 1]
                           /\ rec' = [rec EXCEPT ![x] = [st |-> IF Bad("read_before_fence") THEN "read" ELSE "fence", s |-> s,
                                                         tok |-> n.lock + 1, kept |-> srv[s].kept, inc |-> 0]]
           /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,seek,truth,epoch,conf,bad>>
Fence(x) == /\ rec[x].st = "fence" /\ Len(log) < MaxLog
            /\ log' = Append(log, [k |-> IF Bad("unnamed") THEN "oth" ELSE "inc", ep |-> 0, start |-> 0])
            /\ rec' = [rec EXCEPT ![x].st = IF Bad("read_before_fence") THEN "lay" ELSE "read", ![x].inc = Len(log) + 1]
            /\ UNCHANGED <<srv,cur,old,cps,grp,buf,cp,seek,truth,epoch,conf,bad,n>>
Right(x) == Bad("right_unasked") \/ (srv[rec[x].s].up = "lost" /\ srv[rec[x].s].reb = rec[x].tok)
(* Reads the record in force, the checkpoints of its epoch or the mirrored floor if it belongs to this epoch, and the data
   that the server kept. *)
Read(x) == /\ rec[x].st = "read"
           /\ LET d == Now  s == rec[x].s
                  C == {c \in cps : c.ep = d.ep}
                  known == UNION {c.set : c \in C}
                  good == grp.ep = d.ep \/ (Bad("any_epoch") /\ grp.ep >= 0)
                  kept == rec[x].kept /\ (srv[s].ep = d.ep \/ Bad("copy_believed"))
                  behind == ~(known \subseteq srv[s].set) /\ ~Bad("kept_believed")
              IN rec' = [rec EXCEPT ![x] =
                    [st |-> IF Bad("read_before_fence") THEN "fence" ELSE "lay", s |-> s, tok |-> @.tok, inc |-> @.inc, kept |-> kept,
                     how |-> IF kept /\ ~behind THEN "go on" ELSE "lay", ep |-> d.ep,
                     set |-> IF kept THEN srv[s].set \cup known
                             ELSE IF C # {} THEN known
                             ELSE Upto(IF good THEN grp.f ELSE d.start)]]
           /\ UNCHANGED <<srv,cur,old,log,cps,grp,buf,cp,seek,truth,epoch,conf,bad,n>>
Lay(x) == /\ rec[x].st = "lay"
          /\ srv' = IF Right(x) /\ rec[x].how = "lay" THEN [srv EXCEPT ![rec[x].s].set = rec[x].set, ![rec[x].s].ep = rec[x].ep]
                    ELSE srv
          /\ rec' = [rec EXCEPT ![x].st = "install"]
          /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,seek,truth,epoch,conf,bad,n>>
Max(a,b) == IF a > b THEN a ELSE b
Install(x) == /\ rec[x].st = "install" /\ rec' = [rec EXCEPT ![x] = None]
              /\ srv' = IF Right(x) THEN [srv EXCEPT ![rec[x].s] = [@ EXCEPT !.up = "ok", !.reb = 0, !.kept = FALSE,
                                             !.chg = @ /\ rec[x].how = "go on", !.inc = Max(rec[x].inc, @ + 1)]]
                        ELSE srv
              /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,seek,truth,epoch,conf,bad,n>>
Other == /\ n.other < MaxOther /\ n' = [n EXCEPT !.other = @ + 1] /\ Len(log) < MaxLog
         /\ log' = Append(log, [k |-> "oth", ep |-> 0, start |-> 0])
         /\ UNCHANGED <<srv,cur,old,cps,grp,buf,cp,rec,seek,truth,epoch,conf,bad>>
--------------------------------------------------------------------------------
(* A seek. A record is void if a newer incarnation lies before it (Define.tla); und is the end of the journal at the
   beginning of the seek. *)
SeekBegin(s) == /\ srv[s].up = "ok" /\ ~srv[s].chg /\ seek = None /\ n.seek < MaxSeek /\ n' = [n EXCEPT !.seek = @ + 1]
                /\ \E at \in Seeks : seek' = [st |-> "write", s |-> s, und |-> Len(log), at |-> at,
                                              ep |-> IF Bad("epoch_stays") THEN srv[s].ep ELSE srv[s].ep + 1]
                /\ srv' = [srv EXCEPT ![s].chg = TRUE]
                (* The version in Redis is the one in force when the journal is read; otherwise the change is given up. *)
                /\ srv[s].ep = Now.ep
                (* The scripts do not check this: see README.md. *)
                /\ Newest(s) \/ Bad("moved_on_old_master")
                /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,rec,truth,epoch,conf,bad>>
SeekWrite == /\ seek.st = "write" /\ Len(log) < MaxLog
             /\ IF Newer(seek.und,0) THEN /\ seek' = None /\ UNCHANGED <<log,epoch,truth>>
                ELSE /\ log' = Append(log, [k |-> "def", ep |-> seek.ep, start |-> seek.at])
                     /\ seek' = [seek EXCEPT !.st = "lay"] /\ epoch' = seek.ep /\ truth' = Upto(seek.at)
             /\ UNCHANGED <<srv,cur,old,cps,grp,buf,cp,rec,conf,bad,n>>
SeekLay == /\ seek.st = "lay" /\ seek' = None
           /\ srv' = IF srv[seek.s].up = "ok" /\ srv[seek.s].chg
                     THEN [srv EXCEPT ![seek.s] = [@ EXCEPT !.chg = FALSE, !.ep = seek.ep, !.set = Upto(seek.at)]] ELSE srv
           /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,rec,truth,epoch,conf,bad,n>>
(* A process that finds an abandoned change completes it. *)
Resolve(s) == /\ srv[s].up = "ok" /\ srv[s].chg /\ seek = None
              /\ srv' = [srv EXCEPT ![s] = [@ EXCEPT !.chg = FALSE, !.ep = Now.ep,
                                                     !.set = IF Now.ep = srv[s].ep THEN @ ELSE Upto(Now.start)]]
              /\ UNCHANGED <<cur,old,log,cps,grp,buf,cp,rec,seek,truth,epoch,conf,bad,n>>
SeekStop == seek # None /\ seek' = None /\ UNCHANGED <<srv,cur,old,log,cps,grp,buf,cp,rec,truth,epoch,conf,bad,n>>
Next == \/ Replicate \/ Fault \/ SeekWrite \/ SeekLay \/ SeekStop \/ Other
        \/ \E s \in S : Ack(s) \/ SeekBegin(s) \/ Resolve(s) \/ \E w \in W : Look(w,s) \/ Inspect(w,s)
        \/ \E w \in W : Commit(w) \/ Write(w) \/ Confirm(w) \/ Forget(w)
        \/ \E x \in X : Take(x) \/ Fence(x) \/ Read(x) \/ Lay(x) \/ Install(x)
Spec == Init /\ [][Next]_vars
Perms == Permutations(W) \cup Permutations(X)
--------------------------------------------------------------------------------
Serving(s) == srv[s].up = "ok" /\ ~srv[s].chg
(* I1: an offset that is settled in Redis was settled by an application in the epoch in force, or lies before its start. *)
I1_SettledTrue == \A s \in S : Serving(s) /\ srv[s].ep = epoch => srv[s].set \subseteq truth
(* I10: mirrored and journalled offsets of the epoch in force are settled, so a recovered floor is not ahead of the true one. *)
I10_Floor == /\ grp.ep = epoch => Upto(grp.f) \subseteq truth
             /\ \A c \in cps : c.ep = epoch => c.set \subseteq truth
(* I17: an offset confirmed at the level journal is settled on every serving server whose incarnation is not older. *)
I17_Confirmed == \A s \in S : Serving(s) =>
                    \A c \in conf : c.ep = srv[s].ep /\ c.inc <= srv[s].inc => c.o \in srv[s].set
(* Only an incarnation of this subscription prevents a confirmation. *)
OwnOnly == "blocked" \notin bad
(* The newest incarnation serves the epoch in force: a loss of Redis does not undo a confirmed seek. *)
EpochInForce == \A s \in S : Serving(s) /\ Newest(s) => srv[s].ep = epoch
================================================================================
