//! A transformer of one layer: characters in, scores of the next character out.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, Int, Tensor};
use finite_attention_burn::Attention;
use finite_attention_burn::finite_attention::Result;

/// Characters that the model sees at once.
pub const CONTEXT: usize = 64;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const WIDTH: usize = HEADS * HEAD_DIM;

#[derive(Module, Debug)]
pub struct Model {
    characters: Embedding,
    places: Embedding,
    before_attention: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    before_layer: LayerNorm,
    up: Linear,
    down: Linear,
    before_scores: LayerNorm,
    scores: Linear,
}

impl Model {
    /// Random weights for an alphabet of so many characters.
    pub fn new(characters: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let norm = || LayerNormConfig::new(WIDTH).init(device);
        Model {
            characters: EmbeddingConfig::new(characters, WIDTH).init(device),
            places: EmbeddingConfig::new(CONTEXT, WIDTH).init(device),
            before_attention: norm(),
            q: linear(WIDTH, HEADS * HEAD_DIM),
            k: linear(WIDTH, KEY_HEADS * HEAD_DIM),
            v: linear(WIDTH, KEY_HEADS * HEAD_DIM),
            o: linear(HEADS * HEAD_DIM, WIDTH),
            before_layer: norm(),
            up: linear(WIDTH, 4 * WIDTH),
            down: linear(4 * WIDTH, WIDTH),
            before_scores: norm(),
            scores: linear(WIDTH, characters),
        }
    }

    /// Scores of the next character `[batch, row, character]` for tokens `[batch, row]`.
    pub fn forward(&self, tokens: Tensor<2, Int>, attention: &Attention) -> Result<Tensor<3>> {
        let [batch, rows] = tokens.dims();
        let places = Tensor::<1, Int>::arange(0..rows as i64, &tokens.device()).unsqueeze_dim::<2>(0);
        let x = self.characters.forward(tokens) + self.places.forward(places);
        let seen = self.before_attention.forward(x.clone());
        // `[batch, head, row, column]`, in the 16 bits that tensor cores multiply.
        let heads = |linear: &Linear, heads| {
            let all = linear.forward(seen.clone()).reshape([batch, rows, heads, HEAD_DIM]);
            all.swap_dims(1, 2).cast(DType::BF16)
        };
        let (q, k, v) = (heads(&self.q, HEADS), heads(&self.k, KEY_HEADS), heads(&self.v, KEY_HEADS));
        let o = attention.apply(q, k, v, |problem| problem.causal())?;
        let o = o.cast(DType::F32).swap_dims(1, 2).reshape([batch, rows, WIDTH]);
        let x = x + self.o.forward(o);
        let inner = gelu(self.up.forward(self.before_layer.forward(x.clone())));
        let x = x + self.down.forward(inner);
        Ok(self.scores.forward(self.before_scores.forward(x)))
    }

    /// The mean of `-ln p` of the next characters, `[1]`.
    pub fn loss(
        &self,
        tokens: Tensor<2, Int>,
        next: Tensor<2, Int>,
        attention: &Attention,
    ) -> Result<Tensor<1>> {
        let scores = self.forward(tokens, attention)?;
        let [batch, rows, characters] = scores.dims();
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        Ok(loss.forward(scores.reshape([batch * rows, characters]), next.reshape([batch * rows])))
    }
}
