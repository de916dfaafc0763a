//! A small transformer that predicts the next character of English text: the descriptions of scikit-learn's
//! data sets.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{Embedding, LayerNorm, Linear, Module as _, VarBuilder, VarMap};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::{Common, Score, Task, data, initial, task};

/// Printable ASCII and the end of a line; other characters count as a space.
const CHARACTERS: usize = 96;
const CONTEXT: usize = 32;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
/// Number of windows for tests, in the text's last tenth. It is not trained on.
const TEST_WINDOWS: usize = 48;
const REPORT_EVERY: u64 = 10;
const EPSILON: f32 = 1e-5;

/// The text and a transformer as a task.
pub struct Transformer {
    variables: VarMap,
    characters: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    output: Linear,
    /// Mask of characters hidden from an attention: `[CONTEXT, CONTEXT]`, 0 or minus infinity.
    mask: Tensor,
    text: Vec<u32>,
    device: Device,
    steps: u64,
    batch: usize,
    seed: u64,
}

struct Layer {
    before_attention: LayerNorm,
    queries_keys_values: Linear,
    projection: Linear,
    before_network: LayerNorm,
    wide: Linear,
    narrow: Linear,
}

impl Transformer {
    /// Reads the text, and makes the model.
    ///
    /// # Errors
    /// If the text cannot be read or is too short, or the batch is empty.
    pub fn new(options: &Common, steps: u64, device: &Device) -> Result<Self> {
        ensure!(options.batch > 0, "--batch 0: a step needs samples");
        let text = read(&data::folder(options.data.as_deref())?.join("text"))?;
        ensure!(text.len() >= 20 * (CONTEXT + 1), "a text of {} characters is too short", text.len());
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, device);
        let layers = (0..LAYERS)
            .map(|layer| Layer::new(&builder.pp(format!("layer.{layer}"))))
            .collect::<Result<_>>()?;
        let hidden =
            |query: usize| (0..CONTEXT).map(move |key| if key > query { f32::NEG_INFINITY } else { 0.0 });
        let mask: Vec<f32> = (0..CONTEXT).flat_map(hidden).collect();
        let model = Self {
            characters: candle_nn::embedding(CHARACTERS, WIDTH, builder.pp("characters"))?,
            positions: candle_nn::embedding(CONTEXT, WIDTH, builder.pp("positions"))?,
            layers,
            norm: candle_nn::layer_norm(WIDTH, f64::from(EPSILON), builder.pp("norm"))?,
            output: candle_nn::linear(WIDTH, CHARACTERS, builder.pp("output"))?,
            mask: Tensor::from_vec(mask, (CONTEXT, CONTEXT), device)?,
            text,
            device: device.clone(),
            steps,
            batch: options.batch,
            seed: options.seed,
            variables,
        };
        initial::set(&model.variables, options.seed)?;
        Ok(model)
    }

    /// Characters of `[starts, CONTEXT]` from these places on, and the character after each.
    fn windows(&self, starts: &[usize]) -> Result<(Tensor, Tensor)> {
        let window = |shift: usize| -> Result<Tensor> {
            let of = |&start: &usize| self.text.get(start + shift..start + shift + CONTEXT);
            let characters: Vec<u32> = starts.iter().filter_map(of).flatten().copied().collect();
            Ok(Tensor::from_vec(characters, (starts.len(), CONTEXT), &self.device)?)
        };
        Ok((window(0)?, window(1)?))
    }

    /// Logits of `[windows * CONTEXT, CHARACTERS]`.
    fn logits(&self, windows: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(0, CONTEXT as u32, &self.device)?;
        let mut values =
            self.characters.forward(windows)?.broadcast_add(&self.positions.forward(&positions)?)?;
        for layer in &self.layers {
            values = layer.forward(&values, &self.mask)?;
        }
        Ok(self.output.forward(&normalised(&self.norm, &values)?)?.reshape(((), CHARACTERS))?)
    }

    /// Length of the text to train on.
    fn training(&self) -> usize {
        self.text.len() * 9 / 10
    }
}

impl Layer {
    fn new(builder: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            before_attention: candle_nn::layer_norm(
                WIDTH,
                f64::from(EPSILON),
                builder.pp("before_attention"),
            )?,
            queries_keys_values: candle_nn::linear(WIDTH, 3 * WIDTH, builder.pp("queries_keys_values"))?,
            projection: candle_nn::linear(WIDTH, WIDTH, builder.pp("projection"))?,
            before_network: candle_nn::layer_norm(WIDTH, f64::from(EPSILON), builder.pp("before_network"))?,
            wide: candle_nn::linear(WIDTH, 4 * WIDTH, builder.pp("wide"))?,
            narrow: candle_nn::linear(4 * WIDTH, WIDTH, builder.pp("narrow"))?,
        })
    }

    fn forward(&self, values: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attention(&normalised(&self.before_attention, values)?, mask)?;
        let values = (values + attended)?;
        let wide = self.wide.forward(&normalised(&self.before_network, &values)?)?.gelu()?;
        Ok((&values + self.narrow.forward(&wide)?)?)
    }

    fn attention(&self, values: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (windows, context, width) = values.dims3()?;
        let all = self.queries_keys_values.forward(values)?;
        let heads = |index: usize| -> Result<Tensor> {
            let part = all.narrow(D::Minus1, index * width, width)?;
            Ok(part.reshape((windows, context, HEADS, width / HEADS))?.transpose(1, 2)?.contiguous()?)
        };
        let (queries, keys, values) = (heads(0)?, heads(1)?, heads(2)?);
        let scale = 1.0 / ((width / HEADS) as f64).sqrt();
        let scores = (queries.matmul(&keys.t()?.contiguous()?)? * scale)?.broadcast_add(mask)?;
        let shares = candle_nn::ops::softmax(&scores, D::Minus1)?;
        let attended = shares.matmul(&values)?.transpose(1, 2)?.reshape((windows, context, width))?;
        Ok(self.projection.forward(&attended)?)
    }
}

/// A layer norm. (candle's own forward pass has no gradient where its input is contiguous.)
fn normalised(norm: &LayerNorm, values: &Tensor) -> Result<Tensor> {
    let bias = norm.bias().context("a layer norm without a bias")?;
    Ok(candle_nn::ops::layer_norm_slow(values, norm.weight(), bias, EPSILON)?)
}

/// The characters of all files of a folder, in the order of their names.
fn read(folder: &Path) -> Result<Vec<u32>> {
    let mut paths = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| {
        format!(
            "cannot read {}: get it with `cargo xtask wheels scikit-learn`, or name its folder with --data",
            folder.display()
        )
    })?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rst" || extension == "txt") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut text = Vec::new();
    for path in paths {
        text.extend(String::from_utf8_lossy(&data::read(&path)?).chars().map(character));
    }
    Ok(text)
}

/// Number of a character: 0 for the end of a line, 1 to 95 for printable ASCII.
fn character(character: char) -> u32 {
    match character {
        '\n' => 0,
        ' '..='~' => u32::from(character) - 31,
        _ => 1,
    }
}

impl Task for Transformer {
    fn variables(&self) -> &VarMap {
        &self.variables
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn report_every(&self) -> u64 {
        REPORT_EVERY
    }

    fn batch(&self, step: u64) -> Vec<usize> {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_mul(1_000_003).wrapping_add(step));
        (0..self.batch).map(|_| random.random_range(0..self.training() - CONTEXT)).collect()
    }

    fn loss(&self, samples: &[usize]) -> Result<Tensor> {
        let (windows, next) = self.windows(samples)?;
        Ok(candle_nn::loss::cross_entropy(&self.logits(&windows)?, &next.flatten_all()?)?)
    }

    fn evaluate(&self, rank: usize, size: usize) -> Result<Score> {
        let (first, len) = (self.training(), self.text.len() - self.training() - CONTEXT - 1);
        let starts: Vec<usize> =
            task::part(TEST_WINDOWS, rank, size).map(|window| first + window * len / TEST_WINDOWS).collect();
        if starts.is_empty() {
            return Ok(Score::default());
        }
        let (windows, next) = self.windows(&starts)?;
        let answers = self.logits(&windows)?.argmax(1)?;
        let correct =
            answers.eq(&next.flatten_all()?)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        Ok(Score { correct: f64::from(correct), of: (starts.len() * CONTEXT) as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_a_number() {
        assert_eq!(['\n', ' ', 'A', '~', '\u{e9}', '\t'].map(character), [0, 1, 34, 95, 1, 1]);
        assert!((character('~') as usize) < CHARACTERS);
    }
}
