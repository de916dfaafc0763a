//! `nccl-bench plot`: charts of one or more results, as SVG or PNG files, or as one HTML page.
//!
//! `model` sorts the measurements into sections (a collective with its type, operator and root) and series (a
//! run and a placement). `axis` and `chart` draw one metric of a section, `legend` and `headline` describe
//! it. `drawing` puts them together as an SVG file, `png` makes a picture of the drawing, `page` is HTML with
//! `reading` and `numbers`.
//!
//! The drawing code is this crate's own. The chart libraries with logarithmic axes (plotters, charts-rs,
//! kuva) write colours into each element, so a style sheet with two themes cannot change them. poloto has
//! style sheets, but no logarithmic axis; charming needs JavaScript.

mod axis;
mod chart;
mod drawing;
mod headline;
mod input;
mod legend;
mod marker;
mod model;
mod numbers;
mod output;
mod page;
mod png;
mod reading;
mod text;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::{ArgMatches, Args as _, FromArgMatches as _};
use record::sides::SelectedSide;
use record::{Measurement, Placement, Run, matching};

use super::{Command, Context, path_lines};
use crate::exit::{ExitError, print_text};
use model::Picture;
use output::FileType;

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Plot;

impl Command for Plot {
    fn define_command(&self) -> clap::Command {
        PlotArguments::augment_args(clap::Command::new("plot"))
            .about("Draw result files, ours or nccl-tests': SVG, PNG, or a page that needs nothing else")
    }

    fn run_command(&self, matches: &ArgMatches, _context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = PlotArguments::from_arg_matches(matches)?;
        let read =
            |path: &Path| matching::read_joined_run(path).map_err(|error| anyhow::anyhow!(error.problem));
        let written =
            plot_files(&arguments, read).map_err(|error| ExitError::refused(format!("{error:#}")))?;
        print_text(&path_lines(&written))
    }
}

const EXAMPLES: &str = "\
Examples:
  nccl-bench plot result.json                          a page with bandwidth and time of all collectives
  nccl-bench plot before.json after.json --label 2.27 --label 2.28 --output nccl.html
  nccl-bench plot result.json --output result.svg --metric busbw --placement out
  nccl-bench plot result.json --output result.svg --split
                                                       an SVG file per collective and metric

Files are replaced only when an earlier plot made them.";

/// The arguments of `nccl-bench plot`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PlotArguments {
    /// Result files or logs with tables of nccl-tests, also compressed (.gz, .zst), or - for standard input;
    /// each becomes a run of the charts
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Output file: a page (.html), a drawing (.svg) or a picture (.png)
    #[arg(long, value_name = "FILE", default_value = "nccl-bench.html")]
    pub output: PathBuf,

    /// Write an SVG or PNG file per collective and metric: OUTPUT-allreduce-busbw.svg
    #[arg(long)]
    pub split: bool,

    /// Replace the output file, whatever it contains
    #[arg(long)]
    pub force: bool,

    /// The content of the output.
    #[command(flatten)]
    pub options: PlotOptions,
}

/// Options of the drawing.
#[derive(clap::Args, Clone, Debug, PartialEq, Eq)]
pub struct PlotOptions {
    /// Metric to draw; may be given several times, or with commas
    #[arg(long = "metric", value_name = "METRIC", value_delimiter = ',', default_values = ["busbw", "time"])]
    pub metrics: Vec<Metric>,

    /// Out-of-place (solid), in-place (dashed), or both
    #[arg(long = "placement", value_name = "PLACEMENT", default_value = "both")]
    pub placements: Placements,

    /// For results of --vs, which side; both: each as a run of its own
    #[arg(long, value_enum, default_value_t = SelectedSide::Both)]
    pub side: SelectedSide,

    /// Axis of the bandwidths; times and sizes are always logarithmic
    #[arg(long, value_name = "SCALE", default_value = "linear")]
    pub scale: Scale,

    /// Where all results have statistics, draw medians of single operations, shaded from the fastest to this
    /// one; none: means
    #[arg(long, value_name = "STATISTIC", default_value = "p95")]
    pub spread: Spread,

    /// Name of a run, in the order of the files [default: the file's name]
    #[arg(long = "label", value_name = "NAME")]
    pub labels: Vec<String>,

    /// Heading of the plot
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

impl PlotOptions {
    fn plot_title(&self) -> &str {
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

/// Placements to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Placements {
    /// Out-of-place
    Out,
    /// In-place
    In,
    /// Both
    Both,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// From 0 on, in equal steps
    Linear,
    /// Each power of ten as long as the next
    Log,
}

/// The band around a line. With the times of single operations, the line is their median and the band their
/// range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// Nothing: the line is the mean of all operations
    None,
    /// From the fastest operation to the 95th percentile
    P95,
    /// From the fastest operation to the slowest
    Max,
}

/// Reason for a missing plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingToDraw {
    /// No run has a measurement.
    #[error(
        "there is nothing to draw: no file holds a measurement; measure first, as in nccl-bench allreduce"
    )]
    NoMeasurement,
    /// All measurements have the other placement.
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
        "there is nothing to draw: every value is zero or not a number; a single rank has no bus bandwidth: \
         use --metric algbw, --metric time or --scale linear"
    )]
    NoValue,
}

impl Metric {
    /// Returns the metric's value in a measurement.
    fn value_of(self, measurement: &Measurement) -> f64 {
        match self {
            Self::Busbw => measurement.busbw_gbps,
            Self::Algbw => measurement.algbw_gbps,
            Self::Time => measurement.time_us,
        }
    }

    /// Returns the metric's value if the operations had taken `time_us`. A bandwidth is inverse to the time.
    fn value_if_time(self, measurement: &Measurement, time_us: f64) -> f64 {
        match self {
            Self::Time => time_us,
            Self::Busbw | Self::Algbw => self.value_of(measurement) * measurement.time_us / time_us,
        }
    }

    /// Returns the scale of its axis: always logarithmic for times.
    fn axis_scale(self, bandwidths: Scale) -> Scale {
        if self == Self::Time { Scale::Log } else { bandwidths }
    }

    /// Returns its name on the command line.
    const fn metric_name(self) -> &'static str {
        match self {
            Self::Busbw => "busbw",
            Self::Algbw => "algbw",
            Self::Time => "time",
        }
    }

    /// Returns its name in headings.
    const fn metric_title(self) -> &'static str {
        match self {
            Self::Busbw => "bus bandwidth",
            Self::Algbw => "algorithm bandwidth",
            Self::Time => "time per operation",
        }
    }
}

impl Placements {
    fn has_placement(self, placement: Placement) -> bool {
        match self {
            Self::Both => true,
            Self::Out => placement == Placement::OutOfPlace,
            Self::In => placement == Placement::InPlace,
        }
    }
}

/// Reads the files, draws them, and writes the output. Returns the paths of the written files.
///
/// # Errors
/// When a file cannot be read, nothing can be drawn, the output exists and was not made by an earlier plot,
/// or it cannot be written. Of several output files, some may then have been written.
pub fn plot_files(
    arguments: &PlotArguments,
    read: impl Fn(&Path) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<PathBuf>> {
    let file_type = FileType::from_path(&arguments.output)?;
    ensure!(
        file_type != FileType::Html || !arguments.split,
        "--split writes SVG or PNG files; name one, as in --output {}",
        arguments.output.with_extension("svg").display()
    );
    let runs = input::read_all(arguments, read)?;
    let (output, options) = (&arguments.output, &arguments.options);
    let files = match file_type {
        FileType::Html => vec![(output.clone(), render_html(&runs, options)?.into_bytes())],
        FileType::Svg | FileType::Png if arguments.split => {
            let stem = output.file_stem().unwrap_or(OsStr::new("nccl-bench")).to_string_lossy();
            let path =
                |name: String| output.with_file_name(format!("{stem}-{name}.{}", file_type.file_suffix()));
            let file = |(name, text)| anyhow::Ok((path(name), file_type.of_drawing(text)?));
            svg_each(&runs, options)?.into_iter().map(file).collect::<anyhow::Result<_>>()?
        }
        FileType::Svg | FileType::Png => {
            vec![(output.clone(), file_type.of_drawing(render_svg(&runs, options)?)?)]
        }
    };
    output::write_all(&files, arguments.force, &arguments.files)?;
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// Returns one HTML page: the headline of each run, the charts and numbers of each section, then the machine
/// and settings of each run. The page loads nothing and has no script.
///
/// Each run has a label; equal labels get numbers.
pub fn render_html(runs: &[(String, Run)], options: &PlotOptions) -> Result<String, NothingToDraw> {
    Picture::new(runs, options).map(|picture| page::render_page(&picture))
}

/// Returns one SVG file: the headline of each run, then a row of charts per section, a column per metric.
pub fn render_svg(runs: &[(String, Run)], options: &PlotOptions) -> Result<String, NothingToDraw> {
    let picture = Picture::new(runs, options)?;
    let alone = picture.sections.len() * picture.metrics.len() == 1;
    let heading = if alone { options.title.as_deref() } else { Some(options.plot_title()) };
    Ok(drawing::render_drawing(&picture, &picture.sections, &picture.metrics, heading))
}

/// Returns an SVG file per section and metric, with its name: `allreduce-busbw`, or
/// `allreduce-half-sum-busbw` for a collective with several sections.
pub fn svg_each(
    runs: &[(String, Run)],
    options: &PlotOptions,
) -> Result<Vec<(String, String)>, NothingToDraw> {
    let picture = Picture::new(runs, options)?;
    let mut files: Vec<(String, String)> = Vec::new();
    for section in &picture.sections {
        for &metric in &picture.metrics {
            let name =
                output::file_name(&format!("{}-{}", picture.section_name(section), metric.metric_name()));
            let numbered = (2..).map(|number| format!("{name}-{number}"));
            let free = |name: &String| !files.iter().any(|(taken, _)| taken == name);
            let name = std::iter::once(name.clone()).chain(numbered).find(free).unwrap_or(name);
            let section = std::slice::from_ref(section);
            files.push((
                name,
                drawing::render_drawing(&picture, section, &[metric], options.title.as_deref()),
            ));
        }
    }
    Ok(files)
}
