//! The progress bar on a terminal: the current measurement, the progress of the run, and the time left.
//!
//! It is shown on standard error if that is a terminal, but not while standard output is a pipe: its reader
//! may write rows to the same terminal (`nccl-bench all | tee log`), and the bar would garble them.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use engine::groups::Groups;
use engine::sweep::{self, SweepPlan, SweepStep};

/// The fixed cost of a measurement, in bytes: start, synchronisation, verification.
const FIXED_COST: u64 = 16 << 20;
/// At most 40 columns before the message, which is cut at the width of the terminal, since a longer line
/// would wrap.
const TEMPLATE: &str = "{bar:10} {percent:>3}% {times}  {wide_msg}";

/// Characters of the bar where the locale has no others: the part that is done, its end, the rest.
const ASCII_BAR: &str = "=> ";

/// A bar, invisible where there is no terminal.
#[derive(Clone, Debug)]
pub struct SweepProgress {
    bar: ProgressBar,
}

impl Default for SweepProgress {
    /// Without a bar.
    fn default() -> Self {
        Self { bar: ProgressBar::hidden() }
    }
}

impl SweepProgress {
    /// The progress of a plan over these groups.
    pub fn new(plan: &SweepPlan, groups: &Groups) -> Self {
        let target =
            if is_pipe(&io::stdout()) { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Self::with_target(target, plan_cost(plan, groups), has_unicode(|name| std::env::var(name).ok()))
    }

    fn with_target(target: ProgressDrawTarget, total: u64, unicode: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            let style = if unicode { style } else { style.progress_chars(ASCII_BAR) };
            bar.set_style(style.with_key("times", write_times));
        }
        Self { bar }
    }

    /// Sets the current step. The activity is last, so that a narrow terminal cuts the less important part.
    pub fn begin_step(&self, SweepStep { activity, subject }: &SweepStep) {
        self.bar.set_message(format!("{subject}: {activity}"));
    }

    /// Advances by the measurement of one size and placement.
    pub fn advance_progress(&self, bytes: u64) {
        self.bar.inc(measurement_cost(bytes));
    }

    /// Prints something, above the bar.
    pub fn print_above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the bar.
    pub fn remove_bar(&self) {
        self.bar.finish_and_clear();
    }
}

/// True if the locale's characters are UTF-8. `variable` returns the value of a variable that is set; as for
/// the C library, the first that is not empty counts.
fn has_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_uppercase();
    locale.contains("UTF-8") || locale.contains("UTF8")
}

/// True for a pipe or a socket, which another process reads.
fn is_pipe(stream: &impl AsFd) -> bool {
    let metadata = stream.as_fd().try_clone_to_owned().and_then(|stream| File::from(stream).metadata());
    metadata.is_ok_and(|found| found.file_type().is_fifo() || found.file_type().is_socket())
}

/// Writes `12s elapsed, 3m left`, without the time left at the start and in endless cycles.
fn write_times(state: &ProgressState, out: &mut dyn Write) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{:#} elapsed", HumanDuration(state.elapsed()));
    if (1..state.len().unwrap_or(0)).contains(&state.pos()) {
        let _ = write!(out, ", {:#} left", HumanDuration(state.eta()));
    }
}

/// The cost of a measurement: its bytes and a fixed amount.
fn measurement_cost(bytes: u64) -> u64 {
    bytes.saturating_add(FIXED_COST)
}

/// The cost of a plan. Endless cycles count as one.
fn plan_cost(plan: &SweepPlan, groups: &Groups) -> u64 {
    let sizes: u64 = plan.sweep.list_sizes().map(measurement_cost).fold(0, u64::saturating_add);
    let rows: usize = plan
        .request
        .collectives
        .iter()
        .filter(|collective| groups.group_sizes().all(|ranks| collective.runs_over(ranks)))
        .map(|&collective| {
            sweep::list_cases(plan, collective, groups.smallest_size()).len()
                * plan.list_placements(collective).len()
        })
        .sum();
    sizes
        .saturating_mul((rows * groups.group_count()) as u64)
        .saturating_mul(plan.request.settings.cycles.max(1) as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;
    use crate::cli::tests::measurement;

    /// A fake terminal of a given width, which records what is written to it.
    #[derive(Clone, Debug)]
    struct Screen {
        columns: u16,
        written: Arc<Mutex<String>>,
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            self.columns
        }
        fn height(&self) -> u16 {
            24
        }
        fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
            assert_eq!(lines, 0, "the bar has wrapped");
            Ok(())
        }
        fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
            assert_eq!(lines, 0, "the bar has wrapped");
            Ok(())
        }
        fn move_cursor_right(&self, _columns: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _columns: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(&format!("{text}\n"))
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.written.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.written.lock().unwrap().push('\r');
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_bar_is_one_line_at_every_width_and_says_its_times_in_words() {
        for columns in [40, 80, 120, 200] {
            let screen = Screen { columns, written: Arc::default() };
            let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
            let progress = SweepProgress::with_target(target, 4 * (FIXED_COST + 1), true);
            let subject = "allreduce bfloat16 sum of 1073741824 bytes, out of place".to_owned();
            progress.begin_step(&SweepStep { activity: "timed operations", subject });
            progress.bar.force_draw();
            progress.advance_progress(1);
            progress.bar.force_draw();
            let written = screen.written.lock().unwrap().clone();
            let lines: Vec<&str> = written.split(['\r', '\n']).filter(|line| !line.is_empty()).collect();
            assert!(lines.iter().all(|line| line.chars().count() <= columns.into()), "{columns}: {lines:#?}");
            assert!(lines[0].contains("s elapsed  ") && !lines[0].contains("left"), "{lines:#?}");
            let last = lines.last().unwrap();
            assert!(
                last.contains(" 25% ") && last.contains("s elapsed, ") && last.contains("s left"),
                "{last}"
            );
            assert_eq!(last.contains("allreduce bfloat16 sum of 1073741824"), columns >= 80, "{last}");
            assert_eq!(last.contains("out of place: timed operations"), columns >= 120, "{last}");
            progress.remove_bar();
            let written = screen.written.lock().unwrap().clone();
            assert!(
                written.rsplit('\r').next().unwrap().trim().is_empty(),
                "the bar is removed: {written:?}"
            );
        }
    }

    #[test]
    fn the_bar_of_a_locale_without_unicode_is_ascii() {
        for unicode in [false, true] {
            let screen = Screen { columns: 80, written: Arc::default() };
            let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
            let progress = SweepProgress::with_target(target, 4 * (FIXED_COST + 1), unicode);
            progress.advance_progress(1);
            progress.bar.force_draw();
            let written = screen.written.lock().unwrap().clone();
            assert_eq!(written.is_ascii(), !unicode, "{written:?}");
        }
        let locale = |set: &'static [(&str, &str)]| {
            has_unicode(|name| {
                set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(locale(&[("LANG", "en_GB.UTF-8")]) && locale(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
        assert!(!locale(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")]) && !locale(&[]));
    }

    #[test]
    fn pipes_and_sockets_are_read_by_others_and_files_are_not() {
        let (_reader, writer) = io::pipe().unwrap();
        assert!(is_pipe(&writer));
        assert!(is_pipe(&std::os::unix::net::UnixStream::pair().unwrap().0));
        assert!(!is_pipe(&tempfile::tempfile().unwrap()));
        assert!(!is_pipe(&File::open("/dev/null").unwrap()));
    }

    #[test]
    fn all_sizes_of_all_cases_are_the_whole() {
        let line =
            "nccl-bench allreduce,hypercube,broadcast -b 1M -e 2M -o sum,max -d float,half -r all -N 3";
        let request = measurement(line).request;
        let mut plan = SweepPlan::new(&request, 2 << 20);
        // Two types: two operators, no hypercube over six ranks, six roots; two placements, three cycles.
        let groups = Groups::of_all(6);
        let sizes = (1 << 20) + (2 << 20) + 2 * FIXED_COST;
        assert_eq!(plan_cost(&plan, &groups), sizes * (4 + 12) * 2 * 3);
        plan.out_of_place_only = vec![engine::collective::Collective::Broadcast];
        assert_eq!(plan_cost(&plan, &groups), sizes * (4 * 2 + 12) * 3);
    }
}
