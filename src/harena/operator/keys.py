"""Certificates and tokens: an authority for each pool, and a certificate of its own for each pod."""

from __future__ import annotations

import base64
import datetime
import secrets
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harena.errors import BoxError, Retry
from harena.kube import claims, names
from harena.kube.objects import Object

AUTHORITY_DAYS = 3650
POD_DAYS = 365
SKEW = datetime.timedelta(hours=1)
"""Clocks of clients may be behind."""
AUTHORITY_KEY = "ca.key"


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """The secrets of a pool. Clients get `key` and the certificate, never the authority's private key."""

    key: bytes
    certificate: str
    _private: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, namespace: str, pool: str) -> PoolKeys:
        private = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"harena pool {namespace}/{pool}"[:64])
        made = (
            _certificate(name, name, private.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
            .sign(private, hashes.SHA256())
        )
        return cls(secrets.token_bytes(32), made.public_bytes(serialization.Encoding.PEM).decode(), private)

    @classmethod
    def read(cls, secret: Object) -> PoolKeys:
        """Read the authority's Secret. Raises BoxError if it is damaged."""
        try:
            data = {name: base64.b64decode(text, validate=True) for name, text in secret["data"].items()}
            private = serialization.load_pem_private_key(data[AUTHORITY_KEY], password=None)
            certificate = data[names.AUTHORITY].decode()
            x509.load_pem_x509_certificate(certificate.encode())
            if not isinstance(private, ec.EllipticCurvePrivateKey) or len(data[names.KEY]) < 32:
                raise ValueError("not a key of ours")
        except (LookupError, ValueError, TypeError) as error:
            name = secret.get("metadata", {}).get("name")
            raise BoxError(
                f"Secret {name}: damaged ({error}); delete it, and recreate the pool", retry=Retry.NEVER
            ) from None
        return cls(data[names.KEY], certificate, private)

    def authority_data(self) -> dict[str, str]:
        """Contents of the authority's Secret."""
        return {**self.client_data(), AUTHORITY_KEY: _base64(_private_pem(self._private))}

    def client_data(self) -> dict[str, str]:
        """Contents of the Secret that clients read."""
        return {names.KEY: _base64(self.key), names.AUTHORITY: _base64(self.certificate.encode())}

    def pod_data(self, namespace: str, pod: str) -> dict[str, str]:
        """Contents of a pod's Secret: its certificate, its private key, and the file of its token."""
        private = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.certificate.encode()).subject
        name = names.server_name(namespace, pod)
        made = (
            _certificate(_name("harena pod"), issuer, private.public_key(), POD_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private.public_key()), critical=False
            )
            .sign(self._private, hashes.SHA256())
        )
        token = claims.pod_token(self.key, namespace, pod)
        return {
            "tls.crt": _base64(made.public_bytes(serialization.Encoding.PEM)),
            "tls.key": _base64(_private_pem(private)),
            "tokens": _base64(f"{names.TOKEN_NAME} {token}\n".encode()),
        }


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private_pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return private.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
