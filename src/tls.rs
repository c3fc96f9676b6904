//! Which cryptography secures connections that we make.

/// Starts to build an HTTP client. No proxy: whatever the environment says, the address given is the
/// one that is meant.
pub fn http_client() -> reqwest::ClientBuilder {
    // The first caller decides for the process; there is only one choice.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder().no_proxy()
}
