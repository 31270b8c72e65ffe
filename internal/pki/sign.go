package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// errKeyType means that a key is of a type that certificates of servers do not have.
var errKeyType = errors.New("the key is neither ECDSA nor RSA nor Ed25519")

// Sign signs a message with the key of the server's certificate, and returns the
// certificate in PEM with those between it and its CA. CheckSignature verifies it.
func (p *PKI) Sign(message []byte) (certificatePEM, signature []byte, err error) {
	server := p.current.Load().server
	key, ok := server.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, errKeyType
	}
	if _, ok := key.Public().(ed25519.PublicKey); ok {
		signature, err = key.Sign(rand.Reader, message, crypto.Hash(0))
	} else {
		sum := sha256.Sum256(message)
		signature, err = key.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("signing with the server's key: %w", err)
	}
	for _, der := range server.Certificate {
		certificatePEM = append(certificatePEM, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})...)
	}
	return certificatePEM, signature, nil
}

// CheckSignature reports whether a signature of Sign is by the key of a certificate.
// Who issued the certificate is for the caller to verify.
func CheckSignature(certificate *x509.Certificate, message, signature []byte) error {
	switch certificate.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return certificate.CheckSignature(x509.ECDSAWithSHA256, message, signature)
	case *rsa.PublicKey:
		return certificate.CheckSignature(x509.SHA256WithRSA, message, signature)
	case ed25519.PublicKey:
		return certificate.CheckSignature(x509.PureEd25519, message, signature)
	}
	return errKeyType
}
