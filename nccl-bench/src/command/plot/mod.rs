//! `nccl-bench plot`: charts of one or more results, as SVG files or as one HTML page.
//!
//! `model` sorts the measurements into sections (a collective with its type, operator and root) and series (a run and a
//! placement). `axis`, `marker` and `chart` draw one metric of a section, `legend` and `headline` describe it. `drawing`
//! puts them together as an SVG file, `page` as HTML with `overview`, `reading` and `numbers`.
//!
//! The drawing code is this crate's own. The chart libraries with logarithmic axes (plotters, charts-rs, kuva) write
//! colours into each element, where a style sheet with two themes does not reach them; poloto has style sheets, but no
//! logarithmic axis; charming needs JavaScript. None draws elements that take the keyboard's focus.

mod arguments;
mod axis;
mod chart;
mod drawing;
mod frame;
mod headline;
mod input;
mod legend;
mod marker;
mod markup;
mod model;
mod numbers;
mod output;
mod overview;
mod page;
mod reading;
mod style;
mod text;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::{ArgMatches, Args as _, FromArgMatches as _};
use record::{Placement, Run, files};

pub use arguments::Arguments;
pub use axis::Scale;

use super::{Command, Context, lines};
use crate::exit::{ExitError, print};
use model::Picture;
use output::{FileType, MARK};

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Plot;

impl Command for Plot {
    fn definition(&self) -> clap::Command {
        Arguments::augment_args(clap::Command::new("plot"))
            .about("Draw result files, ours or nccl-tests': SVG, or a page that needs nothing else")
    }

    fn run(&self, matches: &ArgMatches, _context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = Arguments::from_arg_matches(matches)?;
        let read = |path: &Path| files::read(path).map_err(|error| anyhow::anyhow!(error.problem));
        let written = run(&arguments, read).map_err(|error| ExitError::refused(format!("{error:#}")))?;
        print(&lines(&written))
    }
}

/// Options of the drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A chart for each.
    pub metrics: Vec<Metric>,
    /// The placements to draw.
    pub placements: Placements,
    /// The axis of bandwidths.
    pub scale: Scale,
    /// The shaded range.
    pub spread: Spread,
    /// The heading; `None` for the default one.
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

/// The values of a chart, by message size.
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

/// The band around a line. With the times of single operations, the line is their median and the band their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// Nothing: the line is the mean of all operations
    None,
    /// From the fastest operation to the 95th percentile
    P95,
    /// From the fastest operation to the slowest
    Max,
}

/// Reason for which there is no plot.
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
    /// No value can be drawn.
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

/// Reads the files, draws them, and writes the output; returns the paths of the written files.
///
/// # Errors
/// When a file cannot be read, when there is nothing to draw, when the output exists and no earlier plot made it, or
/// when it cannot be written. Of several output files, some may have been written then.
pub fn run(
    arguments: &Arguments,
    read: impl Fn(&Path) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<PathBuf>> {
    let file_type = FileType::of(&arguments.output)?;
    ensure!(
        file_type == FileType::Svg || !arguments.split,
        "--split writes SVG files; name one, as in --output {}",
        arguments.output.with_extension("svg").display()
    );
    let runs = input::read_all(arguments, read)?;
    let texts = draw(arguments, file_type, &runs)?;
    output::write_all(&texts, arguments.force, &arguments.files)?;
    Ok(texts.into_iter().map(|(path, _)| path).collect())
}

/// Draws the output files, each with its path.
fn draw(
    arguments: &Arguments,
    file_type: FileType,
    runs: &[(String, Run)],
) -> Result<Vec<(PathBuf, String)>, NothingToDraw> {
    let options = arguments.options();
    let output = &arguments.output;
    Ok(match file_type {
        FileType::Html => vec![(output.clone(), html(runs, &options)?)],
        FileType::Svg if arguments.split => {
            let stem = output.file_stem().unwrap_or(OsStr::new("nccl-bench")).to_string_lossy();
            let path = |name: String| output.with_file_name(format!("{stem}-{name}.svg"));
            svg_each(runs, &options)?.into_iter().map(|(name, text)| (path(name), text)).collect()
        }
        FileType::Svg => vec![(output.clone(), svg(runs, &options)?)],
    })
}

/// Returns one HTML page: the headline of each run, the charts and numbers of each section, then the machine
/// and settings of each run. The page loads nothing and has no script.
///
/// Each run has a label; equal labels get numbers.
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

/// Returns an SVG file per section and metric, with its name: `allreduce-busbw`, or `allreduce-half-sum-busbw` where a
/// collective has several sections.
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
            let name = output::file_name(&format!("{}{detail}-{metric_name}", section.collective));
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
