-------------------------------- MODULE Collect --------------------------------
(* The removal of old checkpoints from the journal: a process that reads a shard writes tombstones for checkpoints that are
   covered by later ones.

   Modelled: kafkadur_coordinators/journal/checkpoints.py (superseded), topic.py (collect), kafkadur/runtime/checkpoint_thread.py (renew).
   A key belongs to one writer, and for one incarnation the set written under it only grows. After a while its writer gives
   the key up (WRITER_MS). A checkpoint that is so old that its key must have been given up (KEPT_MS) may be removed. Between
   reading and writing the tombstones, any other step may happen, including a removal by another process.
   Not modelled: time itself; checkpoints of past epochs, which are not read. *)
EXTENDS Integers, FiniteSets, TLC
CONSTANTS Keys, C,    \* keys, removing processes (model values)
          N, MaxWrite, MaxRead, Defects
Off == 0..(N-1)
Bad(d) == d \in Defects
VARIABLES rec,    \* the record under a key: [at (time), set]; at = 0: none
          used,   \* keys that their writers have not given up
          gone,   \* removing processes: keys to be removed
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
(* superseded: from the oldest on, checkpoints whose offsets are in later ones *)
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
(* I18: the remaining checkpoints contain every offset that any checkpoint ever contained. *)
I18_Said == said = UNION {rec[k].set : k \in Keys}
================================================================================
