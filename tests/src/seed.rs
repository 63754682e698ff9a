//! What `FATTN_SEED` says. A file without dependencies: `cargo xtask` reads the variable with it, too.

use std::hash::{BuildHasher as _, RandomState};

/// The seed that the environment names, if it does.
///
/// # Errors
/// What is wrong with it.
pub fn from_environment() -> Result<Option<u64>, String> {
    match std::env::var("FATTN_SEED") {
        Ok(text) => parse(&text).map(Some),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(format!("FATTN_SEED: {error}")),
    }
}

/// A number, or `random` for any.
fn parse(text: &str) -> Result<u64, String> {
    if text == "random" {
        // Of 32 bits: it is read, and typed in again.
        return Ok(RandomState::new().hash_one(()) >> 32);
    }
    text.parse().map_err(|_| format!("FATTN_SEED: expected a number or `random`, got `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_number_or_random() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        let drawn: Vec<_> = (0..8).map(|_| parse("random").unwrap()).collect();
        assert!(drawn.iter().any(|seed| *seed != drawn[0]), "{drawn:?}");
        for text in ["", "-1", "7 ", "Random", "18446744073709551616"] {
            let expected = format!("FATTN_SEED: expected a number or `random`, got `{text}`");
            assert_eq!(parse(text), Err(expected));
        }
    }
}
