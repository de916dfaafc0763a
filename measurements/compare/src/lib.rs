//! One small network, trained with candle or burn on processors, for programs with different ways of
//! averaging gradients.
//!
//! Each program in `src/bin` marks the user's lines for averaging gradients: the lines between `// begin` and
//! `// end`, without imports, comments and lines of braces alone.

pub mod burn_net;
pub mod candle_net;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use collectives::ReduceOp;
use collectives::job::Group;

/// Learning rate of all programs.
pub const RATE: f64 = 0.01;

/// The network, the batch, and the steps.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// Numbers in each example.
    #[arg(long, default_value_t = 256)]
    pub inputs: usize,
    /// Numbers in the network's output.
    #[arg(long, default_value_t = 10)]
    pub outputs: usize,
    /// Width of the hidden layers.
    #[arg(long, default_value_t = 1024)]
    pub width: usize,
    /// Linear layers, the last included.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub layers: u16,
    /// Examples in each step on each rank.
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Steps in each round.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Measured rounds, with averages and without.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

impl Options {
    /// Inputs and outputs of each linear layer.
    #[must_use]
    pub fn shapes(&self) -> Vec<(usize, usize)> {
        let layers = usize::from(self.layers);
        let width = |layer| match layer {
            0 => self.inputs,
            layer if layer == layers => self.outputs,
            _ => self.width,
        };
        (0..layers).map(|layer| (width(layer), width(layer + 1))).collect()
    }
}

/// Communication for the measurement.
pub trait Ranks {
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn size(&self) -> usize;
    /// The largest value of all ranks. Collective: returns when all ranks have called it.
    ///
    /// # Errors
    /// If another rank has failed.
    fn largest(&self, value: f64) -> Result<f64>;
}

impl Ranks for Group {
    fn rank(&self) -> usize {
        Self::rank(self)
    }

    fn size(&self) -> usize {
        Self::size(self)
    }

    fn largest(&self, value: f64) -> Result<f64> {
        let mut values = [value];
        self.all_reduce_in_place(&mut values, ReduceOp::Max)?;
        Ok(values[0])
    }
}

/// A network in training.
pub trait Training {
    /// Forward and backward pass, averages of the gradients over the ranks if `is_averaged`, and the
    /// optimizer's step.
    ///
    /// # Errors
    /// If the framework or the communication fails.
    fn step(&mut self, is_averaged: bool) -> Result<()>;
    /// All parameters, in the same order on all ranks.
    ///
    /// # Errors
    /// If the framework fails.
    fn parameters(&self) -> Result<Vec<f32>>;
}

/// Measures rounds with averages, on `averaged`, and without, on `alone`, in turn; prints one line on rank 0.
///
/// # Errors
/// If a step fails, or if the parameters of `averaged` differ between the ranks at the end.
pub fn measure(
    program: &str,
    options: &Options,
    ranks: &impl Ranks,
    averaged: &mut dyn Training,
    alone: &mut dyn Training,
) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=options.rounds {
        for (is_averaged, times) in times.iter_mut().enumerate() {
            let is_averaged = is_averaged == 1;
            let training: &mut dyn Training = if is_averaged { &mut *averaged } else { &mut *alone };
            ranks.largest(0.0)?;
            let start = Instant::now();
            for _ in 0..options.steps {
                training.step(is_averaged)?;
            }
            let slowest = ranks.largest(start.elapsed().as_secs_f64())?;
            // The first round warms up.
            if round > 0 {
                times.push(slowest * 1e3 / f64::from(options.steps));
            }
        }
    }
    let [alone, with] = times.map(median);
    let mut hasher = DefaultHasher::new();
    for value in averaged.parameters()? {
        value.to_bits().hash(&mut hasher);
    }
    // As many bits as f64 has exactly.
    let digest = (hasher.finish() >> 12) as f64;
    let is_equal = ranks.largest(digest)? == -ranks.largest(-digest)?;
    anyhow::ensure!(is_equal, "{program}: the parameters of the ranks differ at the end");
    if ranks.rank() == 0 {
        let (ranks, share) = (ranks.size(), (with - alone) / with * 100.0);
        println!("{program} ranks {ranks} ms {with:.3} alone {alone:.3} share {share:.1} parameters equal");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{Options, median};

    #[test]
    fn shapes_lead_from_inputs_to_outputs() {
        let shapes = |arguments: &[&str]| {
            Options::parse_from([&["compare", "--inputs", "5", "--width", "7"], arguments].concat()).shapes()
        };
        assert_eq!(shapes(&[]), [(5, 7), (7, 7), (7, 10)]);
        assert_eq!(shapes(&["--layers", "1"]), [(5, 10)]);
        assert!(Options::try_parse_from(["compare", "--layers", "0"]).is_err());
    }

    #[test]
    fn median_of_an_odd_number() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
