--------------------------------- MODULE Define ---------------------------------
(* Changes of a definition: set CHANGING in Redis, append a record to the journal (the first valid record in log order wins),
   install the definition in force.

   A process that changes a definition in order to attach keeps CHANGING until its member has attached, so that no other member
   comes in between (install-7.lua, attach-7.lua: held). It may stop before: then CHANGING is past its deadline at some time.

   Modelled: coordinators/kafkadur_coordinators/changes.py, state_recovery.py (rebuild), records.py (which record is in force),
   lua/change-7.lua, install-7.lua, rebuild-7.lua, reincarnate-7.lua.
   - Changing processes, each of which may stop at any step and continue much later or never. One unsubscribes, others replace.
   - A process that finds CHANGING past its deadline resolves it: it appends an abort record and then installs.
   - Loss of Redis (empty, or another server with an older copy), the right to rebuild, and rebuilding.
   - Compaction of the journal: each record has a key of its own, so compaction removes no record.
   A record is (expected version, incarnation it began under, content); its version is its position in the log.
   Not modelled: settlement states (Settled.tla), which member may attach, more than one subscription of a shard, epochs. *)
EXTENDS Naturals, Sequences, FiniteSets, TLC
CONSTANTS C,          \* changing processes (model values)
          Del,        \* the process that unsubscribes
          MaxLog, MaxFault, MaxTry,
          Defects     \* planted defects (see README.md); {}: the real behaviour
Bad(d) == d \in Defects
VARIABLES log,   \* the journal
          red,   \* Redis: ok, ver, c (content), chg (token of the change), from (version it expects), inc, reb (token of the rebuild),
                 \* late: the deadline of the change has passed
          old,   \* the copy of another server
          pc, exp, und, pos, tok, \* changing processes: step, expected version, incarnation read, position of the record, token
          rs,    \* the process that resolves a change
          rb,    \* the process that rebuilds
          won,   \* history: <<expected version, version>> of the changes that were reported as won
          n
vars == <<log,red,old,pc,exp,und,pos,tok,rs,rb,won,n>>
Inc == [k |-> "inc", exp |-> 0, und |-> 0, c |-> "none"]
Rec(e,u,c) == [k |-> "chg", exp |-> e, und |-> u, c |-> c]
NoRs == [st |-> "idle", tok |-> 0, exp |-> 0, und |-> 0, pos |-> 0]
NoRb == [st |-> "idle", tok |-> 0, kept |-> FALSE, inc |-> 0]
Init == /\ log = <<Rec(0,0,"v0")>>
        /\ red = [ok |-> TRUE, ver |-> 1, c |-> "v0", chg |-> 0, from |-> 0, inc |-> 0, reb |-> 0, kept |-> FALSE, late |-> FALSE]
        /\ old = red
        /\ pc = [x \in C |-> "idle"] /\ exp = [x \in C |-> 0] /\ und = exp /\ pos = exp /\ tok = exp
        /\ rs = NoRs /\ rb = NoRb /\ won = {} /\ n = [fault |-> 0, try |-> 0, tok |-> 0]
--------------------------------------------------------------------------------
(* records.in_force: a record is void if an incarnation newer than the one it began under lies before it in the log. *)
LastInc(k) == LET I == {i \in 1..k : log[i].k = "inc"} IN IF I = {} THEN 0 ELSE CHOOSE i \in I : \A j \in I : j <= i
Void(i) == ~Bad("no_incarnations") /\ \E j \in 1..(i-1) : log[j].k = "inc" /\ j > log[i].und
Chg(k) == {i \in 1..k : log[i].k = "chg" /\ ~Void(i)}
InForce(k) == LET S == Chg(k)  e == CHOOSE e \in {log[i].exp : i \in S} : \A i \in S : log[i].exp <= e
                  T == {i \in S : log[i].exp = e}
                  v == IF Bad("last_wins") THEN CHOOSE i \in T : \A j \in T : j <= i ELSE CHOOSE i \in T : \A j \in T : i <= j
              IN [ver |-> v, c |-> log[v].c]
Now == InForce(Len(log))
(* After an unsubscribe, Redis has no version; the journal has the version of the deletion. *)
Expected(v) == IF v = 0 /\ Now.c = "gone" THEN Now.ver ELSE v
Content(x) == IF x = Del THEN "gone" ELSE "v1"
(* install-7.lua. t: token of the change or rebuild. On a server that restarted, only the rebuilding process
   installs, after an incarnation record. *)
Installed(v,c,i) == [ok |-> TRUE, ver |-> IF c = "gone" THEN 0 ELSE v, c |-> c, chg |-> 0, from |-> 0, inc |-> i, reb |-> 0,
                     kept |-> FALSE, late |-> FALSE]
Mine(t) == t # 0 /\ ((red.chg = t /\ (red.ok \/ (Bad("install_unfenced") /\ red.reb = 0))) \/ red.reb = t)
Put(v,c,t,i) == IF ~Mine(t) THEN red
                ELSE IF ~red.ok /\ red.reb # t /\ c = red.c THEN red
                ELSE IF red.ok /\ red.ver >= v THEN [red EXCEPT !.chg = IF Mine(t) THEN 0 ELSE @, !.from = IF Mine(t) THEN 0 ELSE @]
                ELSE Installed(v,c,i)
--------------------------------------------------------------------------------
(* A change. The journal is read before CHANGING is set: a later incarnation makes the record void. With the defect the
   journal is read afterwards: a change that is late by a whole rebuild counts, although no process installs it. *)
Begin(x) == /\ pc[x] = "idle" /\ red.ok /\ n.try < MaxTry /\ (x = Del => red.c # "gone")
            /\ n' = [n EXCEPT !.try = @ + 1, !.tok = @ + 1] /\ tok' = [tok EXCEPT ![x] = n.tok + 1]
            /\ exp' = [exp EXCEPT ![x] = red.ver] /\ und' = [und EXCEPT ![x] = LastInc(Len(log))]
            /\ pc' = [pc EXCEPT ![x] = "set"]
            /\ UNCHANGED <<log,red,old,pos,rs,rb,won>>
SetChanging(x) == /\ pc[x] = "set" /\ red.ok
                  /\ IF red.chg = 0 /\ red.ver = exp[x]
                     THEN red' = [red EXCEPT !.chg = tok[x], !.from = exp[x], !.late = FALSE] /\ pc' = [pc EXCEPT ![x] = "read"]
                     ELSE red' = red /\ pc' = [pc EXCEPT ![x] = "idle"]
                  /\ UNCHANGED <<log,old,exp,und,pos,tok,rs,rb,won,n>>
Read(x) == /\ pc[x] = "read" /\ pc' = [pc EXCEPT ![x] = "write"]
           /\ exp' = [exp EXCEPT ![x] = Expected(@)]
           /\ und' = IF Bad("incarnation_read_late") THEN [und EXCEPT ![x] = LastInc(Len(log))] ELSE und
           /\ UNCHANGED <<log,red,old,pos,tok,rs,rb,won,n>>
Write(x) == /\ pc[x] = "write" /\ Len(log) < MaxLog /\ log' = Append(log, Rec(exp[x],und[x],Content(x)))
            /\ pos' = [pos EXCEPT ![x] = Len(log) + 1] /\ pc' = [pc EXCEPT ![x] = "decide"]
            /\ UNCHANGED <<red,old,exp,und,tok,rs,rb,won,n>>
(* The winner is decided at the end of the log. A process installs the definition in force, also when it lost. *)
Holds(x) == x # Del /\ Now.ver = pos[x] /\ Mine(tok[x]) /\ red.ok /\ red.ver < pos[x]
Decide(x) == /\ pc[x] = "decide" /\ pc' = [pc EXCEPT ![x] = IF Holds(x) THEN "attach" ELSE "idle"]
             /\ won' = IF Now.ver = pos[x] THEN won \cup {<<exp[x],pos[x]>>} ELSE won
             /\ red' = IF Bad("loser_clears") /\ Now.ver # pos[x] /\ red.chg = tok[x] THEN [red EXCEPT !.chg = 0, !.from = 0]
                       ELSE IF Bad("installs_own") THEN Put(pos[x], Content(x), tok[x], red.inc)
                       ELSE IF Holds(x) THEN [Installed(pos[x], Now.c, red.inc) EXCEPT !.chg = tok[x], !.from = pos[x]]
                       ELSE Put(Now.ver, Now.c, tok[x], red.inc)
             /\ UNCHANGED <<log,old,exp,und,pos,tok,rs,rb,n>>
(* With the defect, a member attaches to whatever is there, and ends the change of another process. *)
Attach(x) == /\ pc[x] = "attach" /\ pc' = [pc EXCEPT ![x] = "idle"]
             /\ red' = IF red.ok /\ (Bad("ends_any_change") \/ (red.chg = tok[x] /\ red.ver = pos[x] /\ ~red.late))
                       THEN [red EXCEPT !.chg = 0, !.from = 0] ELSE red
             /\ UNCHANGED <<log,old,exp,und,pos,tok,rs,rb,won,n>>
--------------------------------------------------------------------------------
(* A process that finds CHANGING after its deadline resolves the change. *)
RsBegin == /\ rs.st = "idle" /\ red.ok /\ red.chg # 0
           /\ rs' = [st |-> "write", tok |-> red.chg, pos |-> 0, und |-> LastInc(Len(log)),
                     exp |-> Expected(IF Bad("abort_expects_now") THEN Now.ver ELSE red.from)]
           /\ red' = [red EXCEPT !.late = TRUE]
           /\ UNCHANGED <<log,old,pc,exp,und,pos,tok,rb,won,n>>
Before(v) == IF v = 0 THEN "gone" ELSE IF v <= Len(log) /\ log[v].k = "chg" THEN log[v].c ELSE "gone"
RsWrite == /\ rs.st = "write" /\ Len(log) < MaxLog
           /\ log' = IF Bad("no_abort") THEN log ELSE Append(log, Rec(rs.exp, rs.und, Before(rs.exp)))
           /\ rs' = [rs EXCEPT !.st = "install"]
           /\ UNCHANGED <<red,old,pc,exp,und,pos,tok,rb,won,n>>
RsInstall == /\ rs.st = "install" /\ red' = Put(Now.ver, Now.c, rs.tok, red.inc) /\ rs' = NoRs
             /\ UNCHANGED <<log,old,pc,exp,und,pos,tok,rb,won,n>>
RsStop == rs.st # "idle" /\ rs' = NoRs /\ UNCHANGED <<log,red,old,pc,exp,und,pos,tok,rb,won,n>>
--------------------------------------------------------------------------------
Replicate == red.ok /\ n.fault < MaxFault /\ old # red /\ old' = red /\ UNCHANGED <<log,red,pc,exp,und,pos,tok,rs,rb,won,n>>
Fault == /\ red.ok /\ n.fault < MaxFault /\ n' = [n EXCEPT !.fault = @ + 1]
         /\ red' \in {[old EXCEPT !.ok = FALSE, !.reb = 0, !.kept = TRUE],
                      [ok |-> FALSE, ver |-> 0, c |-> "gone", chg |-> 0, from |-> 0, inc |-> 0, reb |-> 0, kept |-> FALSE, late |-> FALSE]}
         /\ UNCHANGED <<log,old,pc,exp,und,pos,tok,rs,rb,won>>
(* The right to rebuild, on this server. It may expire; then another process takes it. *)
RbTake == /\ n.tok < MaxTry + MaxFault + 2 /\ n' = [n EXCEPT !.tok = @ + 1]
          /\ (~red.ok /\ red.kept) \/ ((~red.ok \/ red.ver = 0) /\ Now.c # "gone")
          /\ red' = [red EXCEPT !.ok = FALSE, !.reb = n.tok + 1] /\ rb' = [st |-> "fence", tok |-> n.tok + 1, kept |-> red.kept, inc |-> 0]
          /\ UNCHANGED <<log,old,pc,exp,und,pos,tok,rs,won>>
(* The journal has no such subscription, so there is nothing to rebuild. *)
RbNothing == /\ ~red.ok /\ ~red.kept /\ red.reb = 0 /\ Now.c = "gone" /\ red' = Installed(0,"gone",red.inc)
             /\ UNCHANGED <<log,old,pc,exp,und,pos,tok,rs,rb,won,n>>
RbFence == /\ rb.st = "fence" /\ Len(log) < MaxLog + 2 /\ log' = Append(log, Inc)
           /\ rb' = [rb EXCEPT !.st = "install", !.inc = Len(log) + 1]
           /\ UNCHANGED <<red,old,pc,exp,und,pos,tok,rs,won,n>>
(* With the defect, a server with an older copy continues with its own definition, whatever the journal contains. *)
RbInstall == /\ rb.st = "install" /\ rb' = NoRb
             /\ red' = IF red.ok \/ red.reb # rb.tok THEN red
                       ELSE IF Now.c # "gone" /\ rb.kept /\ (red.ver = Now.ver \/ Bad("copy_believed"))
                            THEN [red EXCEPT !.ok = TRUE, !.reb = 0, !.inc = rb.inc]
                       ELSE Installed(Now.ver, Now.c, rb.inc)
             /\ UNCHANGED <<log,old,pc,exp,und,pos,tok,rs,won,n>>
(* Each record has a key of its own, so compaction removes none. With the defect, the records of a subscription share a key. *)
Compact == /\ Bad("changes_share_key")
           /\ \E i \in 1..Len(log) : /\ log[i].k = "chg" /\ \E j \in (i+1)..Len(log) : log[j].k = "chg"
                                     /\ log' = [log EXCEPT ![i].k = "gone"]
           /\ UNCHANGED <<red,old,pc,exp,und,pos,tok,rs,rb,won,n>>
Next == \/ Compact
        \/ \E x \in C : Begin(x) \/ SetChanging(x) \/ Read(x) \/ Write(x) \/ Decide(x) \/ Attach(x)
        \/ RsBegin \/ RsWrite \/ RsInstall \/ RsStop \/ Replicate \/ Fault \/ RbTake \/ RbNothing \/ RbFence \/ RbInstall
Spec == Init /\ [][Next]_vars
Fair == Spec /\ WF_vars(RsBegin) /\ SF_vars(RsWrite) /\ SF_vars(RsInstall) /\ WF_vars(RbTake) /\ SF_vars(RbFence) /\ SF_vars(RbInstall)
--------------------------------------------------------------------------------
(* Of the changes that expected the same version, at most one is reported as won. *)
OneWinner == \A p, q \in won : p[1] = q[1] => p = q
(* A change that won is in force, or the change in force expected at least its version. *)
WinnerStands == \A p \in won : Now.ver = p[2] \/ log[Now.ver].exp >= p[2]
(* Redis is never ahead of the journal, and has the journal's content for its version. *)
NotAhead == red.ok => red.ver <= Now.ver /\ (red.ver > 0 => log[red.ver].c = red.c)
(* If no change is under way and Redis has a definition, it is the one in force: attaching, moving and altering use it. If
   Redis has none, every process asks the journal. The version in Redis may be behind by an abort, which changes no content:
   the next change loses once, installs the version in force, and is tried again. *)
Converged == red.ok /\ red.chg = 0 /\ red.ver > 0 => red.c = Now.c
(* Without a loss, the version is the same as well. *)
Exact == red.ok /\ red.chg = 0 /\ red.ver > 0 /\ n.fault = 0 => red.ver = Now.ver
(* A change that was begun does not block other changes for ever. *)
Unblocked == []<>(red.chg = 0 \/ ~red.ok \/ Len(log) >= MaxLog)
================================================================================
