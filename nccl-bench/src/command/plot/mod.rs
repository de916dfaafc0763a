//! `nccl-bench plot`: charts of one or more results, as SVG files or as one HTML page.
//!
//! `model` sorts the measurements into sections (a collective with its type, operator and root) and series (a run and a
//! placement); `axis`, `marker` and `chart` draw one metric of a section; `legend` and `headline` say what it is.
//! `drawing` puts them together as an SVG file, `page` as HTML with `overview`, `reading` and `numbers`.
//! The drawing is this module's own. No library at hand has all of: an axis of powers of two in binary units, numbers
//! that need neither a script nor a mouse, dashes as an attribute of one line, and colours by style sheet, which the two
//! themes need.

mod axis;
mod chart;
mod drawing;
mod frame;
mod headline;
mod legend;
mod marker;
mod markup;
mod model;
mod numbers;
mod overview;
mod page;
mod reading;
mod style;
mod text;

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

pub use axis::Scale;

use clap::{ArgMatches, Args as _, FromArgMatches as _};
use record::files::{self, replacement};
use record::sides::Side;
use record::{Placement, Run};

use super::{Command, Context, lines};
use crate::exit::{Exit, print};
use model::Picture;

/// Stands at the start of each file that is written, so that the next plot may replace it.
const MARK: &str = "<!-- made by nccl-bench plot -->\n";

const EXAMPLES: &str = "\
Examples:
  nccl-bench plot result.json                          a page with bandwidth and time of all collectives
  nccl-bench plot before.json after.json --label 2.27 --label 2.28 --output nccl.html
  nccl-bench plot result.json --output result.svg --metric busbw --placement out
  nccl-bench plot result.json --output result.svg --split
                                                       an SVG file per collective and metric

Files are replaced only when an earlier plot made them.";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Plot;

impl Command for Plot {
    fn definition(&self) -> clap::Command {
        Arguments::augment_args(clap::Command::new("plot"))
            .about("Draw result files, ours or nccl-tests': SVG, or a page that needs nothing else")
    }

    fn run(&self, matches: &ArgMatches, _context: &Context<'_>) -> Exit {
        let arguments = match Arguments::from_arg_matches(matches) {
            Ok(arguments) => arguments,
            Err(error) => return error.into(),
        };
        match run(&arguments, |path| files::read(path).map_err(|error| anyhow::anyhow!(error.problem))) {
            Ok(written) => print(&lines(&written)),
            Err(error) => Exit::refused(format!("{error:#}")),
        }
    }
}

/// What `nccl-bench plot` takes.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Result files; each becomes a run of the charts
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Where the plot goes: a page (.html) or a drawing (.svg)
    #[arg(long, value_name = "FILE", default_value = "nccl-bench.html")]
    pub output: PathBuf,

    /// Write an SVG file per collective and metric: OUTPUT-allreduce-busbw.svg
    #[arg(long)]
    pub split: bool,

    /// Replace the output, whatever it is
    #[arg(long)]
    pub force: bool,

    /// What to draw; may be given several times, or with commas
    #[arg(long = "metric", value_name = "METRIC", value_delimiter = ',', default_values = ["busbw", "time"])]
    pub metrics: Vec<Metric>,

    /// Out-of-place (solid), in-place (dashed), or both
    #[arg(long = "placement", value_name = "PLACEMENT", default_value = "both")]
    pub placements: Placements,

    /// Of results of --vs, which side; both: each as a run of its own
    #[arg(long, value_enum, default_value_t = Side::Both)]
    pub side: Side,

    /// Axis of the bandwidths; times and sizes are always logarithmic
    #[arg(long, value_name = "SCALE", default_value = "linear")]
    pub scale: Scale,

    /// Where all results have statistics, draw medians of single operations, shaded from the fastest to this one; none: means
    #[arg(long, value_name = "STATISTIC", default_value = "p95")]
    pub spread: Spread,

    /// Name of a run, in the order of the files [default: the file's name]
    #[arg(long = "label", value_name = "NAME")]
    pub labels: Vec<String>,

    /// Heading of the plot
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

/// How results are drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to draw: a chart for each.
    pub metrics: Vec<Metric>,
    /// Which placements to draw.
    pub placements: Placements,
    /// The axis of bandwidths.
    pub scale: Scale,
    /// What is shaded.
    pub spread: Spread,
    /// The heading; `None` for one that says what this is.
    pub title: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            metrics: vec![Metric::Busbw, Metric::Time],
            placements: Placements::Both,
            scale: Scale::Linear,
            spread: Spread::P95,
            title: None,
        }
    }
}

impl Options {
    fn title(&self) -> &str {
        self.title.as_deref().unwrap_or("Collectives: bandwidth and latency")
    }
}

/// What a chart shows against the message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Metric {
    /// Bus bandwidth in GB/s
    Busbw,
    /// Algorithm bandwidth in GB/s: size over time
    Algbw,
    /// Time per operation
    Time,
}

/// Which placements are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Placements {
    /// Out-of-place
    Out,
    /// In-place
    In,
    /// Both
    Both,
}

/// The band around a line. Where operations were timed one by one, the line is their median, and the band
/// their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// Nothing: the line is the mean of all operations
    None,
    /// From the fastest operation to the 95th percentile
    P95,
    /// From the fastest operation to the slowest
    Max,
}

/// Why there is no plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToDraw {
    /// No run has a measurement.
    #[error(
        "there is nothing to draw: no file holds a measurement; measure first, as in nccl-bench allreduce"
    )]
    NoMeasurement,
    /// There are measurements, of the other placement.
    #[error("there is nothing to draw: nothing was measured with this placement; use --placement both")]
    NoPlacement,
    /// All sizes are 0.
    #[error(
        "there is nothing to draw: all sizes are 0 bytes (so few bytes that no rank has an element); \
         measure larger sizes (-b, -e)"
    )]
    OnlySizeZero,
    /// No value has a place in a chart.
    #[error(
        "there is nothing to draw: all values are zero or no numbers; a single rank has no bus bandwidth: \
         use --metric algbw, --metric time or --scale linear"
    )]
    NoValue,
    /// No metric was asked for.
    #[error("there is nothing to draw: no metric was asked for; use --metric busbw, algbw or time")]
    NoMetric,
}

impl Placements {
    fn has(self, placement: Placement) -> bool {
        match self {
            Self::Both => true,
            Self::Out => placement == Placement::OutOfPlace,
            Self::In => placement == Placement::InPlace,
        }
    }
}

/// Reads the files, draws them, and writes the output; returns what was written.
///
/// # Errors
/// When a file cannot be read, when there is nothing to draw, when the output exists and no earlier plot made it, or
/// when it cannot be written. Nothing is written then, except that of several files some may have been.
pub fn run(
    arguments: &Arguments,
    read: impl Fn(&Path) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<PathBuf>> {
    let kind = Kind::of(&arguments.output)?;
    ensure!(
        kind == Kind::Svg || !arguments.split,
        "--split writes SVG files; name one, as in --output {}",
        arguments.output.with_extension("svg").display()
    );
    let (files, labels) = (&arguments.files, &arguments.labels);
    ensure!(
        labels.is_empty() || labels.len() == files.len(),
        "there are {} for {}; give one --label per file, or none",
        text::counted(labels.len(), "label"),
        text::counted(files.len(), "file"),
    );
    let labels = if labels.is_empty() { file_labels(files) } else { labels.clone() };
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    for (file, label) in files.iter().zip(labels) {
        match read(file) {
            Ok(run) => runs.push((file, label, run)),
            Err(error) => failures.push(format!("{}: {error:#}", file.display())),
        }
    }
    if !failures.is_empty() {
        bail!(
            "{} cannot be read; name results of nccl-bench:\n  {}",
            text::counted(failures.len(), "file"),
            failures.join("\n  ")
        );
    }
    let mut sides = Vec::new();
    for (file, label, run) in runs {
        let found = arguments.side.of(run);
        ensure!(!found.is_empty(), "{} has no other side: it was not measured with --vs", file.display());
        sides.extend(found.into_iter().map(|(name, run)| match name {
            Some(name) => (format!("{label} ({name})"), run),
            None => (label.clone(), run),
        }));
    }
    let runs = sides;
    let options = Options {
        metrics: arguments.metrics.clone(),
        placements: arguments.placements,
        scale: arguments.scale,
        spread: arguments.spread,
        title: arguments.title.clone(),
    };
    let texts = match kind {
        Kind::Html => vec![(arguments.output.clone(), html(&runs, &options)?)],
        Kind::Svg if arguments.split => {
            let stem = arguments.output.file_stem().unwrap_or(OsStr::new("nccl-bench")).to_string_lossy();
            let path = |name: String| arguments.output.with_file_name(format!("{stem}-{name}.svg"));
            svg_each(&runs, &options)?.into_iter().map(|(name, text)| (path(name), text)).collect()
        }
        Kind::Svg => vec![(arguments.output.clone(), svg(&runs, &options)?)],
    };
    for (path, _) in &texts {
        refuse_unrelated(path, arguments.force, files)?;
    }
    for (path, text) in &texts {
        write_whole(path, text)?;
    }
    Ok(texts.into_iter().map(|(path, _)| path).collect())
}

/// Returns one HTML page: the headline of each run, the charts and numbers of each section, then the machine
/// and settings of each run. The page loads nothing and has no script.
///
/// Each run has a label; labels that are alike get numbers.
///
/// # Errors
/// When there is nothing to draw.
pub fn html(runs: &[(String, Run)], options: &Options) -> Result<String, NothingToDraw> {
    let options = checked(options)?;
    let picture = Picture::new(runs, &options)?;
    Ok(page::write(&picture, MARK))
}

/// Returns one SVG file: the headline of each run, then a row of charts per section, a column per metric.
///
/// # Errors
/// When there is nothing to draw.
pub fn svg(runs: &[(String, Run)], options: &Options) -> Result<String, NothingToDraw> {
    let options = checked(options)?;
    let picture = Picture::new(runs, &options)?;
    let alone = picture.sections.len() * options.metrics.len() == 1;
    let heading = if alone { options.title.as_deref() } else { Some(options.title()) };
    Ok(drawing::write(&picture, &picture.sections, &options.metrics, heading, MARK))
}

/// An SVG file per section and metric, each with a name of its own: `allreduce-busbw`, and with more in it where a
/// collective has several sections: `allreduce-half-sum-busbw`.
///
/// # Errors
/// When there is nothing to draw.
pub fn svg_each(runs: &[(String, Run)], options: &Options) -> Result<Vec<(String, String)>, NothingToDraw> {
    let options = checked(options)?;
    let picture = Picture::new(runs, &options)?;
    let mut files: Vec<(String, String)> = Vec::new();
    for section in &picture.sections {
        let alone =
            picture.sections.iter().filter(|other| other.collective == section.collective).count() == 1;
        let detail = if alone { String::new() } else { format!("-{}", Picture::detail(section)) };
        for &metric in &options.metrics {
            let metric_name = match metric {
                Metric::Busbw => "busbw",
                Metric::Algbw => "algbw",
                Metric::Time => "time",
            };
            let name = file_name(&format!("{}{detail}-{metric_name}", section.collective));
            let numbered = (2..).map(|number| format!("{name}-{number}"));
            let free = |name: &String| !files.iter().any(|(taken, _)| taken == name);
            let name = std::iter::once(name.clone()).chain(numbered).find(free).unwrap_or(name);
            let section = std::slice::from_ref(section);
            let text = drawing::write(&picture, section, &[metric], options.title.as_deref(), MARK);
            files.push((name, text));
        }
    }
    Ok(files)
}

/// The options with each metric once.
fn checked(options: &Options) -> Result<Options, NothingToDraw> {
    let mut metrics: Vec<Metric> = Vec::new();
    for &metric in &options.metrics {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    if metrics.is_empty() {
        return Err(NothingToDraw::NoMetric);
    }
    Ok(Options { metrics, ..options.clone() })
}

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Html,
    Svg,
}

impl Kind {
    fn of(path: &Path) -> anyhow::Result<Self> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        match suffix.as_deref() {
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            _ => bail!("--output {} must end in .html (a page) or .svg (a drawing)", path.display()),
        }
    }
}

/// The files' names without suffix, with their folders where names are alike.
fn file_labels(files: &[PathBuf]) -> Vec<String> {
    let stem = |file: &PathBuf| file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    let label = |file: &PathBuf| {
        let name = stem(file);
        let alike = files.iter().any(|other| other != file && stem(other) == name);
        if alike { file.display().to_string() } else { name }
    };
    files.iter().map(label).collect()
}

/// A name that any file system takes.
fn file_name(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() || character == '_' {
            name.push(character);
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    name
}

/// Keeps the user's other files: only what a plot wrote may be replaced unasked, and results never.
fn refuse_unrelated(path: &Path, force: bool, inputs: &[PathBuf]) -> anyhow::Result<()> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    ensure!(metadata.is_file(), "{} is no file; name another --output", path.display());
    let same =
        |input: &PathBuf| matches!((input.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b);
    ensure!(!inputs.iter().any(same), "{} holds results to draw; name another --output", path.display());
    if force {
        return Ok(());
    }
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(256).read_to_end(&mut start));
    let earlier = read.is_ok() && String::from_utf8_lossy(&start).contains(MARK);
    ensure!(
        earlier,
        "{} exists and is no plot of nccl-bench; name another --output, or use --force to replace it",
        path.display()
    );
    Ok(())
}

/// Writes a file beside its place, and then moves it there: a reader never sees half of it, and a full disk leaves the
/// one before as it was.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    // A link stays one.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let written = replacement::write(&target, |out| out.write_all(text.as_bytes()));
    written.with_context(|| format!("{} cannot be written; name another --output", path.display()))
}
