//! Fuzz target of the readers of result files. `cargo fuzz` calls it (`fuzz/`), and the tests with a corpus.

use super::source::{Source, decompress_source};
use super::{read_source, text};
use crate::run::{Run, RunOutcome};

/// Reads the bytes as a result file, and checks the runs of a text.
pub fn check_file(content: &[u8]) {
    match decompress_source(content) {
        Ok(Source::Text(mut source)) => text::read_text(&mut source).iter().flatten().for_each(check_text),
        Ok(source) => drop(read_source(source)),
        Err(_) => {}
    }
}

fn check_text(run: &Run) {
    assert!(run.outcome != RunOutcome::Complete || run.ended_at.is_none() && run.left_out.is_none());
    assert!(run.measurements.iter().all(|each| each.cycle < run.settings.cycles));
    assert!(run.measurements.iter().all(|each| !each.collective.is_empty()));
    assert!(run.ranks.iter().enumerate().all(|(index, rank)| rank.rank == index));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::check_file;

    #[test]
    fn the_corpus_passes() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/result");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty());
        for file in files {
            let content = fs::read(file).unwrap();
            check_file(&content);
            // And with a part missing in the middle.
            for start in (0..content.len()).step_by(content.len() / 64 + 1) {
                let end = content.len().min(start + 97);
                check_file(&[&content[..start], &content[end..]].concat());
            }
        }
    }
}
