//! Recognizes secrets by their names: options whose values are masked, and variables or headers that a user named.

/// Names of options whose value is always masked. A longer name that ends in one of them counts, too (`db_password`).
const SECRET_WORDS: [&str; 7] = [
    "password",
    "passphrase",
    "shared_key",
    "secret",
    "secret_key",
    "token",
    "bearer",
];

/// The option whose value is a map of user names to passwords. The whole map is masked, except the user names.
pub(crate) const SECRET_BLOCK: &str = "users";

/// Whether a variable's name suggests that its value is secret.
pub(crate) fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["KEY", "PASS", "SECRET", "TOKEN", "CREDENTIAL", "AUTH"]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether the name of an option, or of an entry that a user chose (an environment variable, an HTTP header), suggests that its value is
/// secret.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let of_option = SECRET_WORDS.iter().any(|word| lower.ends_with(word)) || lower == SECRET_BLOCK;
    // Words such as KEY count only in the names of variables and headers, which have a capital letter or a `-`. Options of Millstream
    // are in lower_snake, and the option `key` is not a secret, but a template or a path.
    let is_foreign = name.contains(|c: char| c.is_ascii_uppercase() || c == '-');
    of_option || lower == "cookie" || lower == "authorization" || (is_foreign && names_secret(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_recognised() {
        for secret in [
            "password",
            "shared_key",
            "db_password",
            "users",
            "authorization",
            "X-Api-Key",
            "API_TOKEN",
            "Authorization",
        ] {
            assert!(is_secret_name(secret), "{secret}");
        }
        for shown in ["key", "path", "tag", "ca", "Content-Type", "HOME"] {
            assert!(!is_secret_name(shown), "{shown}");
        }
    }
}
