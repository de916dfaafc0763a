//! The file of a ladder.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use record::RunOutcome;

use super::LadderArguments;
use super::model::{Facts, LadderFile, Rung};
use crate::command::output_file::Maker;

/// Mark of the file. A later ladder may replace a file with this mark.
const MARK: &str = "made by nccl-bench ladder";

const MAKER: Maker = Maker {
    mark: MARK,
    product: "file of a ladder",
    advice: "name another --output",
    input: "holds results of a ladder",
};

/// Reads the file of an earlier ladder.
///
/// # Errors
/// When it cannot be read, or is another kind of file.
pub(super) fn read_earlier(path: &Path) -> anyhow::Result<LadderFile> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
    let read: LadderFile =
        serde_json::from_str(&text).with_context(|| format!("{name} is not a file of nccl-bench ladder"))?;
    ensure!(read.mark == MARK, "{name} is not a file of nccl-bench ladder");
    Ok(read)
}

/// Returns the whole rungs of an earlier ladder that this one need not measure again.
///
/// # Errors
/// A message when the ladders cannot be continued by each other.
pub(super) fn choose_rungs(earlier: &LadderFile, facts: &Facts) -> Result<Vec<Rung>, String> {
    let (old, new) = (&earlier.facts, facts);
    let differs = [
        ("the collective", old.collective != new.collective),
        ("the backend", old.backend != new.backend),
        ("the large size", old.bytes != new.bytes),
        ("the unit", old.unit != new.unit),
        ("the number of iterations (-n)", old.iterations != new.iterations),
        ("the provider", old.provider != new.provider),
    ];
    if let Some((name, _)) = differs.iter().find(|(_, differs)| *differs) {
        return Err(format!("the ladder of --resume cannot be continued: {name} differs"));
    }
    let is_same = |rung: &&Rung| {
        let count = rung.units;
        let of_new = new.units.get(..count);
        !rung.is_failed()
            && of_new.is_some_and(|units| old.units.get(..count) == Some(units))
            && new.unit_ranks.checked_mul(count) == Some(rung.ranks)
    };
    let mut rungs: Vec<Rung> = earlier.rungs.iter().filter(is_same).cloned().collect();
    rungs.sort_by_key(|rung| rung.units);
    rungs.dedup_by_key(|rung| rung.units);
    Ok(rungs)
}

/// Refuses to replace a file that this command has not written.
///
/// # Errors
/// When it must not be replaced.
pub(super) fn refuse_unrelated(arguments: &LadderArguments) -> anyhow::Result<()> {
    let Some(path) = &arguments.output else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("cannot write {}: there is no folder {}", path.display(), folder.display());
    }
    MAKER.refuse_unrelated(path, arguments.force, &[])
}

/// Writes the file, if one is asked for.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write_file(
    arguments: &LadderArguments,
    facts: Facts,
    rungs: Vec<Rung>,
    outcome: RunOutcome,
) -> anyhow::Result<()> {
    let Some(path) = &arguments.output else { return Ok(()) };
    let content = LadderFile { mark: MARK.to_owned(), facts, rungs, outcome };
    let text = serde_json::to_string_pretty(&content)? + "\n";
    MAKER.write_all(&[(path.clone(), text)], arguments.force, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(units: &[&str], rungs: &[usize]) -> LadderFile {
        let facts = Facts {
            collective: "allreduce".to_owned(),
            unit_ranks: 8,
            bytes: 64,
            units: units.iter().map(|unit| (*unit).to_owned()).collect(),
            ..Facts::default()
        };
        let rung = |&units: &usize| Rung { units, ranks: 8 * units, ..Rung::default() };
        LadderFile {
            mark: MARK.to_owned(),
            facts,
            rungs: rungs.iter().map(rung).collect(),
            outcome: RunOutcome::Running,
        }
    }

    #[test]
    fn only_rungs_over_the_same_hosts_are_kept() {
        let earlier = ladder(&["a", "b", "c", "d"], &[2, 4]);
        let kept = |now: &[&str]| {
            let rungs = choose_rungs(&earlier, &ladder(now, &[]).facts).unwrap();
            rungs.iter().map(|rung| rung.units).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["a", "b", "c", "d", "e"]), [2, 4]);
        assert_eq!(kept(&["a", "b", "x", "d"]), [2]);
        assert_eq!(kept(&["a"]), [0; 0]);
    }

    #[test]
    fn a_failed_rung_is_measured_again_and_another_size_is_refused() {
        let mut earlier = ladder(&["a", "b"], &[2]);
        let now = ladder(&["a", "b"], &[]).facts;
        earlier.rungs[0].failure = Some("rank 3 left".to_owned());
        assert_eq!(choose_rungs(&earlier, &now), Ok(vec![]));
        let other = Facts { bytes: 128, ..now.clone() };
        assert!(choose_rungs(&earlier, &other).unwrap_err().contains("the large size differs"));
        earlier.rungs[0].failure = None;
        assert_eq!(choose_rungs(&earlier, &now).unwrap().len(), 1);
        let fewer = Facts { unit_ranks: 4, ..now };
        assert_eq!(choose_rungs(&earlier, &fewer), Ok(vec![]));
    }
}
