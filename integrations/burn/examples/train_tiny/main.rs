//! A model of characters that learns two sonnets, with burn and the attention of this library in the
//! emulator.
//!
//! `cargo run --release --example train_tiny [-- --steps N --svg loss.svg]`
//!
//! About a minute on two cores. It prints the loss, draws it, and says what the model has learnt. Queries
//! have four heads and keys two, causal, in bf16; weights and all else are f32.

mod model;
mod plot;

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use finite_attention_burn::Attention;
use model::{CONTEXT, Model};
use std::path::PathBuf;
use std::time::Instant;

const TEXT: &str = include_str!("text.txt");
const BATCH: usize = 4;
const STEPS: usize = 200;
const LEARNING_RATE: f64 = 1e-2;

type Failure = Box<dyn std::error::Error>;

/// What is asked on the command line.
struct Arguments {
    steps: usize,
    svg: PathBuf,
}

impl Arguments {
    fn parse() -> Result<Self, Failure> {
        let mut arguments = Arguments { steps: STEPS, svg: PathBuf::from("train_tiny.svg") };
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option}: expected a value, got none"))?;
            match option.as_str() {
                "--steps" => arguments.steps = value.parse()?,
                "--svg" => arguments.svg = PathBuf::from(value),
                _ => return Err(format!("expected --steps N or --svg FILE, got {option}").into()),
            }
        }
        Ok(arguments)
    }
}

/// The characters of the text, each once and in order; a character's place is its token.
fn alphabet() -> Vec<char> {
    let mut characters: Vec<char> = TEXT.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    characters
}

/// Where the sequences of a step begin: other places in each step, the same in each run.
fn beginnings(step: usize, len: usize) -> impl Iterator<Item = usize> {
    let places = (len - CONTEXT - 1) as u64;
    (0..BATCH).map(move |sequence| {
        let number = (step * BATCH + sequence) as u64;
        (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % places as usize
    })
}

/// Tokens `[batch, row]` and those that come after them.
fn batch(tokens: &[i64], step: usize, device: &Device) -> [Tensor<2, Int>; 2] {
    let starts: Vec<usize> = beginnings(step, tokens.len()).collect();
    [0, 1].map(|shift| {
        let rows = starts.iter().map(|start| &tokens[start + shift..start + shift + CONTEXT]);
        let elements: Vec<i64> = rows.flatten().copied().collect();
        Tensor::from_data(TensorData::new(elements, [BATCH, CONTEXT]), device)
    })
}

/// What the model makes of the beginning of a text, always the most likely character.
fn continuation(
    model: &Model,
    attention: &Attention,
    alphabet: &[char],
    beginning: &[i64],
    len: usize,
    device: &Device,
) -> Result<String, Failure> {
    let mut tokens = beginning.to_vec();
    for _ in 0..len {
        let seen = &tokens[tokens.len().saturating_sub(CONTEXT)..];
        let input = Tensor::from_data(TensorData::new(seen.to_vec(), [1, seen.len()]), device);
        let logits = model.forward(input, attention)?;
        let last = logits.narrow(1, seen.len() - 1, 1).argmax(2);
        tokens.push(last.into_data().convert::<i64>().try_to_vec::<i64>().expect("i64")[0]);
    }
    Ok(tokens.iter().map(|&token| alphabet[token as usize]).collect())
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse()?;
    let alphabet = alphabet();
    let place = |character| alphabet.binary_search(&character).expect("a character of the text") as i64;
    let tokens: Vec<i64> = TEXT.chars().map(place).collect();
    let device = Device::flex().autodiff();
    device.seed(1);
    let attention = Attention::default().deterministic();
    let mut model = Model::new(alphabet.len(), &device);
    let mut optimizer = AdamWConfig::new().init();
    let (mut losses, started) = (Vec::new(), Instant::now());
    for step in 0..arguments.steps {
        let [input, target] = batch(&tokens, step, &device);
        let loss = model.loss(input, target, &attention)?;
        losses.push(loss.clone().into_data().convert::<f32>().try_to_vec::<f32>().expect("f32")[0]);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        if step % 10 == 0 || step + 1 == arguments.steps {
            let seconds = started.elapsed().as_secs_f64();
            println!("step {step:3}: loss {:.3} nats a character, {seconds:.1} s", losses[step]);
        }
    }
    std::fs::write(&arguments.svg, plot::loss(&losses))?;
    println!("the loss: {}", arguments.svg.display());
    let said = continuation(&model, &attention, &alphabet, &tokens[..CONTEXT], 80, &device)?;
    println!("the model goes on:\n{said}");
    let last = losses.iter().rev().take(5).sum::<f32>() / losses.len().clamp(1, 5) as f32;
    if losses.len() > 20 && last > 0.8 * losses[0] {
        return Err(format!("nothing was learnt: loss {last} after {}", losses[0]).into());
    }
    Ok(())
}
