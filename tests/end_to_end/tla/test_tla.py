"""The specifications of docs/internals/tla hold in small models, and each rule fails where it is broken.

TLC itself runs. Two small models are among the short tests, the others and the defects among the long ones;
the larger models are `make tla`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tools.tla import LARGE, SPECS, ModelError, check, spec_of, tlc_jar

#: Seconds a small model may take on a busy machine; on a quiet one it takes a few.
LIMIT = 600.0


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A model with a planted defect, and the invariant that has to fail for it."""

    #: Name of the specification.
    spec: str
    #: Name of its small model.
    model: str
    defects: str
    invariant: str
    #: Constants that have other values than in the model: as small as shows the defect.
    change: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """What pytest calls it."""
        return f"{self.spec}-{self.invariant}-{'-'.join(re.findall(r'[a-z_]+', self.defects))}"


def broken(model: str, invariant: str, *defects: str, **change: object) -> Broken:
    """Describe a broken model; the specification is the first word of the model's name."""
    spec = spec_of(Path(f"{model}.cfg"))
    planted = "{" + ", ".join(f'"{defect}"' for defect in defects) + "}"
    values = {name: str(value) for name, value in change.items()}
    return Broken(spec=spec, model=model, defects=planted, invariant=invariant, change=values)


MODELS = (
    "Define",
    "Collect",
    *(
        pytest.param(model, marks=pytest.mark.long)
        for model in ("Lane", "LaneTurns", "LaneLoss", "Shared", "Claims", "Keys", "Settled", "SettledSeek")
    ),
)

BROKEN = (
    broken("Lane", "I1_SettledTrue", "settled_in_hands"),
    broken("Lane", "I3_Fenced", "no_fencing"),
    broken("Lane", "I4_SettledStays", "end_unsettles"),
    broken("Lane", "I5_OneHolder", "repeat_renews_not"),
    broken("Lane", "I5_OneHolder", "any_reply_resumes"),
    broken("LaneTurns", "I5_OneHolder", "no_numbers", MaxDup=1),
    broken(
        "LaneTurns",
        "I5_OneHolder",
        "numbers_restart",
        MaxDup=1,
        MaxStop=1,
        MaxAtt=3,
        MaxEx=3,
        N=1,
        First=1,
    ),
    broken("LaneTurns", "I5_OneHolder", "push_late"),
    broken("LaneTurns", "I4_SettledStays", "push_late"),
    broken("LaneTurns", "I5_OneHolder", "push_to_former", MaxAtt=3, MaxStop=1),
    broken("LaneLoss", "I5_OneHolder", "grace_by_copy"),
    broken("Lane", "I6_InOrder", "lane_first"),
    broken("Lane", "I7_Window", "window_ignored"),
    broken("Lane", "I8_Attempts", "reservation_counted"),
    broken("Lane", "I8_Marked", "unclean_uncounted"),
    broken("Lane", "I8_Marked", "reservation_unmarked"),
    broken("LaneLoss", "I8_Marked", "rebuild_forgets"),
    broken("LaneTurns", "I8_Marked", "offer_in_hands"),
    broken("LaneTurns", "I8_Marked", "offer_unfrozen"),
    broken("Lane", "I9_Conserved", "reservation_counted"),
    broken("LaneTurns", "I9_Bounded", "horizon_falls", Bud=1),
    broken("LaneLoss", "I4_SettledStays", "claims_settled"),
    broken("LaneLoss", "I8_Marked", "claim_forgotten"),
    broken("LaneLoss", "I10_Floor", "mirrors_base"),
    broken("LaneLoss", "I15_WaitedFor", "back_at_attach"),
    broken("LaneLoss", "I16_HighestClaim", "claims_after_grace"),
    broken("LaneLoss", "I16_HighestClaim", "lower_claim_wins", MaxEx=2, MaxAtt=4, Pause="TRUE"),
    broken("Shared", "I1_SettledTrue", "settled_in_hands"),
    broken("Shared", "I3_Fenced", "no_fencing"),
    broken("Shared", "I4_SettledStays", "end_unsettles"),
    broken(
        "Shared", "I7_Credit", "credit_unseen", MaxEx=4, Win=1, N=3, First=1, MaxRoll=0, MaxEnd=0, MaxAtt=2
    ),
    broken("Shared", "I8_LastAlone", "last_attempt_shared"),
    broken("Shared", "I8_LastAlone", "alone_shares"),
    broken("Shared", "I8_Marked", "unclean_uncounted"),
    broken("Shared", "I9_Conserved", "next_stays"),
    broken("Shared", "I11_Fair", "not_in_turn", MaxEx=4),
    broken("Keys", "I1_SettledTrue", "settled_in_hands"),
    broken("Keys", "I4_SettledStays", "end_unsettles", MaxEnd=1),
    broken("Keys", "I5_OneKeeper", "not_drained", MaxEx=5),
    broken("Keys", "I5_OneKeeper", "keeper_unasked"),
    broken("Keys", "I6_KeyOrder", "keys_ignored"),
    broken("Keys", "I6_KeyOrder", "due_only", MaxEx=5),
    broken("Keys", "I7_Window", "keys_ignored", "window_ignored", Win=1),
    broken("Keys", "I8_Marked", "unclean_uncounted", MaxEnd=1),
    broken("Keys", "I9_Conserved", "reservation_counted", MaxEnd=1, First=1),
    broken("Define", "OneWinner", "last_wins", "no_abort"),
    broken("Define", "WinnerStands", "changes_share_key"),
    broken("Define", "NotAhead", "installs_own"),
    broken("Define", "Exact", "loser_clears"),
    broken("Define", "Exact", "abort_expects_now"),
    broken("Define", "Converged", "no_incarnations", MaxFault=1),
    broken("Define", "Converged", "incarnation_read_late", MaxFault=1),
    broken("Define", "Converged", "copy_believed", MaxFault=1),
    broken("Define", "Converged", "install_unfenced", MaxFault=1, MaxLog=4),
    broken("Define", "Converged", "ends_any_change", MaxLog=4),
    broken("Claims", "I1_SettledTrue", "settled_in_hands"),
    broken("Claims", "I3_Fenced", "no_fencing", MaxEx=3),
    broken("Claims", "I4_SettledStays", "claims_settled", MaxEx=3),
    broken("Claims", "I4_SettledStays", "taken_silently", MaxEx=3),
    broken("Claims", "I8_Marked", "claim_forgotten", MaxEx=3),
    broken("Claims", "I9_Conserved", "next_stays", MaxAtt=2, N=2, Most=2),
    broken("Claims", "I15_WaitedFor", "back_at_attach"),
    broken("Claims", "I16_HighestClaim", "lower_claim_wins"),
    broken("Claims", "I16_HighestClaim", "claims_after_grace"),
    broken("SettledSeek", "I1_SettledTrue", "any_epoch"),
    broken("SettledSeek", "I1_SettledTrue", "epoch_unasked"),
    broken("SettledSeek", "I10_Floor", "epoch_unasked"),
    broken("SettledSeek", "I10_Floor", "mirrors_next", N=2),
    broken("SettledSeek", "I10_Floor", "epoch_stays"),
    broken("Settled", "I17_Confirmed", "not_read_back"),
    broken("Settled", "I17_Confirmed", "one_key", MaxFault=2, MaxOther=0),
    broken("Settled", "I17_Confirmed", "incarnation_unasked"),
    broken("Settled", "I17_Confirmed", "followed_from_first"),
    broken("Settled", "I17_Confirmed", "kept_believed"),
    broken("Settled", "I17_Confirmed", "read_before_fence"),
    broken("Settled", "I17_Confirmed", "unnamed"),
    broken("Settled", "I17_Confirmed", "right_unasked", X="{x, y}"),
    broken("Settled", "OwnOnly", "others_count"),
    broken("SettledSeek", "EpochInForce", "copy_believed"),
    broken("SettledSeek", "EpochInForce", "moved_on_old_master"),
    broken("Collect", "I18_Said", "earlier_count"),
    broken("Collect", "I18_Said", "in_use"),
    broken("Collect", "I18_Said", "oldest_goes"),
)


@pytest.mark.parametrize("model", MODELS)
def test_small_model_holds(model: str) -> None:
    path = SPECS / f"{model}.cfg"
    outcome = check(spec_of(path), path, limit=LIMIT)
    assert (outcome.violated, outcome.complete) == (None, True)


@pytest.mark.long
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in BROKEN])
def test_planted_defect_is_found(case: Broken) -> None:
    change = {"Defects": case.defects, **case.change}
    outcome = check(case.spec, SPECS / f"{case.model}.cfg", change=change, only=case.invariant, limit=LIMIT)
    assert outcome.violated == case.invariant, f"{outcome.states} states, complete: {outcome.complete}"
    assert outcome.trace


def test_every_invariant_has_a_defect_that_breaks_it() -> None:
    checked = {
        (spec_of(path), name)
        for path in SPECS.glob("*.cfg")
        for line in path.read_text().splitlines()
        if line.startswith("INVARIANTS ")
        for name in line.split()[1:]
    }
    assert checked - {(case.spec, case.invariant) for case in BROKEN} == set()


def test_every_defect_of_the_specifications_is_planted() -> None:
    named = {name for path in SPECS.glob("*.tla") for name in re.findall(r'Bad\("(\w+)"\)', path.read_text())}
    assert named == {name for case in BROKEN for name in re.findall(r"[a-z_]+", case.defects)}


def test_larger_models_check_what_the_small_ones_do() -> None:
    for path in LARGE.glob("*.cfg"):
        small = re.search(r"^INVARIANTS .*$", (SPECS / f"{spec_of(path)}.cfg").read_text(), re.MULTILINE)
        assert small is not None
        assert small[0] in path.read_text(), path.name


def test_what_is_no_constant_cannot_be_changed() -> None:
    with pytest.raises(ModelError, match=r"Define\.cfg gives Nothing no value"):
        check("Define", SPECS / "Define.cfg", change={"Nothing": "1"})


def test_a_jar_that_was_changed_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tlc_jar()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changed = tmp_path / "kafkadur" / "tla" / jar.name
    changed.parent.mkdir(parents=True)
    changed.write_bytes(jar.read_bytes()[:-1])
    assert tlc_jar() == changed
    assert changed.read_bytes() == jar.read_bytes()
