-------------------------------- MODULE Collect --------------------------------
(* How old checkpoints are removed from the journal: whoever reads a shard marks, with tombstones, those that say nothing more.

   Modelled: kafkadur_coordinators/journal/checkpoints.py (superseded), topic.py (collect), kafkadur/runtime/checkpoint_thread.py (renew).
   A key belongs to one writer, and for one incarnation what is written under it only grows. After a while its writer gives it up
   (WRITER_MS); what was written so long ago that it must have been given up (KEPT_MS) may be removed. Between reading and
   the tombstones anything may happen, also somebody else who removes.
   Not modelled: time itself; checkpoints of epochs that are over, which nobody reads. *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Keys, C,    \* keys, who removes (model values)
          N, MaxWrite, MaxRead, Defects
Off == 0..(N-1)
Bad(d) == d \in Defects
VARIABLES rec,    \* what stands under a key: [at (when), set], or at = 0: nothing
          used,   \* keys that their writers have not given up
          gone,   \* who removes: keys that are to go
          said, n
vars == <<rec,used,gone,said,n>>
Perms == Permutations(Keys) \cup Permutations(C)
Init == /\ rec = [k \in Keys |-> [at |-> 0, set |-> {}]] /\ used = Keys /\ gone = [c \in C |-> {}] /\ said = {}
        /\ n = [write |-> 0, read |-> 0]
Write(k) == /\ k \in used /\ n.write < MaxWrite /\ n' = [n EXCEPT !.write = @ + 1]
            /\ \E S \in SUBSET Off : /\ rec[k].set \subseteq S /\ S # {}
                                     /\ rec' = [rec EXCEPT ![k] = [at |-> n.write + 1, set |-> S]] /\ said' = said \cup S
            /\ UNCHANGED <<used,gone>>
GiveUp(k) == rec[k].at > 0 /\ used' = used \ {k} /\ UNCHANGED <<rec,gone,said,n>>
(* superseded: from the oldest on, what later ones say, too *)
There == {k \in Keys : rec[k].at > 0}
Later(k) == {j \in There : rec[j].at > rec[k].at}
RECURSIVE Superseded(_,_)
Superseded(todo,left) ==
    IF todo = {} THEN {} ELSE
    LET k == CHOOSE k \in todo : \A j \in todo : rec[k].at <= rec[j].at
        others == IF Bad("earlier_count") THEN left \ {k} ELSE Later(k)
        covered == others # {} /\ rec[k].set \subseteq UNION {rec[j].set : j \in others}
    IN IF covered \/ (Bad("oldest_goes") /\ others # {}) THEN {k} \cup Superseded(todo \ {k}, left \ {k})
       ELSE Superseded(todo \ {k}, left)
Old == IF Bad("in_use") THEN There ELSE There \ used
Read(c) == /\ gone[c] = {} /\ n.read < MaxRead /\ n' = [n EXCEPT !.read = @ + 1]
           /\ gone' = [gone EXCEPT ![c] = Superseded(Old,There)]
           /\ UNCHANGED <<rec,used,said>>
Remove(c) == /\ gone[c] # {} /\ gone' = [gone EXCEPT ![c] = {}]
             /\ rec' = [k \in Keys |-> IF k \in gone[c] THEN [at |-> 0, set |-> {}] ELSE rec[k]]
             /\ UNCHANGED <<used,said,n>>
Next == (\E k \in Keys : Write(k) \/ GiveUp(k)) \/ (\E c \in C : Read(c) \/ Remove(c))
Spec == Init /\ [][Next]_vars
--------------------------------------------------------------------------------
(* I14: all that was ever said is said by what is left. *)
I14_Said == said = UNION {rec[k].set : k \in Keys}
================================================================================
