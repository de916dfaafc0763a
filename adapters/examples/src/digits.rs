//! Handwritten digits: scikit-learn's 1797 images of 8 x 8 pixels, and a network with one hidden layer.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module as _, VarBuilder, VarMap};
use flate2::read::GzDecoder;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::{Common, Score, Task, data, initial, task};

const PIXELS: usize = 64;
const DIGITS: usize = 10;
const HIDDEN: usize = 64;
/// One of this many images is for tests, and not trained on.
const TEST_SHARE: usize = 5;

/// Images and their digits.
struct Images {
    pixels: Vec<f32>,
    digits: Vec<u32>,
}

impl Images {
    fn len(&self) -> usize {
        self.digits.len()
    }

    /// Pixels of `[images, 64]`, and the digits.
    fn tensors(&self, images: &[usize], device: &Device) -> Result<(Tensor, Tensor)> {
        let pixels: Vec<f32> = images
            .iter()
            .filter_map(|&at| self.pixels.get(at * PIXELS..(at + 1) * PIXELS))
            .flatten()
            .copied()
            .collect();
        let digits: Vec<u32> = images.iter().filter_map(|&at| self.digits.get(at)).copied().collect();
        let pixels = Tensor::from_vec(pixels, (images.len(), PIXELS), device)?;
        Ok((pixels, Tensor::from_vec(digits, images.len(), device)?))
    }
}

/// The digits as a task.
pub struct Digits {
    variables: VarMap,
    hidden: Linear,
    output: Linear,
    training: Images,
    test: Images,
    device: Device,
    epochs: u64,
    batch: usize,
    seed: u64,
}

impl Digits {
    /// Reads the data, and makes the model.
    ///
    /// # Errors
    /// If the data cannot be read, or there are fewer images than in a batch.
    pub fn new(options: &Common, epochs: u64, device: &Device) -> Result<Self> {
        let path = data::folder(options.data.as_deref())?.join("digits.csv.gz");
        let (training, test) = read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            (1..=training.len()).contains(&options.batch),
            "--batch {}: there are {} images to train on",
            options.batch,
            training.len()
        );
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, device);
        let hidden = candle_nn::linear(PIXELS, HIDDEN, builder.pp("hidden"))?;
        let output = candle_nn::linear(HIDDEN, DIGITS, builder.pp("output"))?;
        initial::set(&variables, options.seed)?;
        let (batch, seed) = (options.batch, options.seed);
        Ok(Self { variables, hidden, output, training, test, device: device.clone(), epochs, batch, seed })
    }

    fn logits(&self, pixels: &Tensor) -> Result<Tensor> {
        Ok(self.output.forward(&self.hidden.forward(pixels)?.relu()?)?)
    }
}

/// Images to train on, and to test.
fn read(path: &Path) -> Result<(Images, Images)> {
    let mut text = String::new();
    GzDecoder::new(data::read(path)?.as_slice()).read_to_string(&mut text)?;
    let none = || Images { pixels: Vec::new(), digits: Vec::new() };
    let (mut training, mut test) = (none(), none());
    for (number, line) in text.lines().enumerate() {
        let values: Vec<f32> = line
            .split(',')
            .map(|value| value.trim().parse())
            .collect::<Result<_, _>>()
            .with_context(|| format!("line {}", number + 1))?;
        let (Some((&digit, pixels)), true) = (values.split_last(), values.len() == PIXELS + 1) else {
            anyhow::bail!("line {} has {} values instead of {}", number + 1, values.len(), PIXELS + 1);
        };
        let images = if number % TEST_SHARE == 0 { &mut test } else { &mut training };
        images.pixels.extend(pixels.iter().map(|pixel| pixel / 16.0));
        images.digits.push(digit as u32);
    }
    Ok((training, test))
}

impl Task for Digits {
    fn variables(&self) -> &VarMap {
        &self.variables
    }

    fn steps(&self) -> u64 {
        self.epochs * self.report_every()
    }

    /// An epoch of full batches. Images that do not fill a batch are skipped; each epoch skips others.
    fn report_every(&self) -> u64 {
        (self.training.len() / self.batch) as u64
    }

    fn batch(&self, step: u64) -> Vec<usize> {
        let (epoch, batch) = (step / self.report_every(), (step % self.report_every()) as usize);
        let mut order: Vec<usize> = (0..self.training.len()).collect();
        order.shuffle(&mut StdRng::seed_from_u64(self.seed.wrapping_mul(1_000_003).wrapping_add(epoch)));
        order.into_iter().skip(batch * self.batch).take(self.batch).collect()
    }

    fn loss(&self, samples: &[usize]) -> Result<Tensor> {
        let (pixels, digits) = self.training.tensors(samples, &self.device)?;
        Ok(candle_nn::loss::cross_entropy(&self.logits(&pixels)?, &digits)?)
    }

    fn evaluate(&self, rank: usize, size: usize) -> Result<Score> {
        let images: Vec<usize> = task::part(self.test.len(), rank, size).collect();
        if images.is_empty() {
            return Ok(Score::default());
        }
        let (pixels, digits) = self.test.tensors(&images, &self.device)?;
        let answers = self.logits(&pixels)?.argmax(1)?;
        let correct = answers.eq(&digits)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        Ok(Score { correct: f64::from(correct), of: images.len() as f64 })
    }
}
