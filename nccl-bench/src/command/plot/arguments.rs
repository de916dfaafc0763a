//! The arguments of `nccl-bench plot`.

use std::path::PathBuf;

use record::sides::SelectedSide;

use super::{Metric, Options, Placements, Scale, Spread};

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
pub struct Arguments {
    /// Result files; each becomes a run of the charts
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Output file: a page (.html) or a drawing (.svg)
    #[arg(long, value_name = "FILE", default_value = "nccl-bench.html")]
    pub output: PathBuf,

    /// Write an SVG file per collective and metric: OUTPUT-allreduce-busbw.svg
    #[arg(long)]
    pub split: bool,

    /// Replace the output file, whatever it contains
    #[arg(long)]
    pub force: bool,

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

impl Arguments {
    pub(super) fn options(&self) -> Options {
        Options {
            metrics: self.metrics.clone(),
            placements: self.placements,
            scale: self.scale,
            spread: self.spread,
            title: self.title.clone(),
        }
    }
}
