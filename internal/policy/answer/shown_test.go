package answer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// §1.1: pages show NAMESPACE/NAME where documents have the stored name, of resources
// that have a namespace, and of no other name with a full stop.
func TestNamesOfPages(t *testing.T) {
	put := func(kind resource.Kind, mesh resource.MeshName, name, namespace string) *resource.Resource {
		meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: mesh, Name: name}}
		if namespace != "" {
			meta.Labels = map[string]string{resource.LabelNamespace: namespace}
		}
		r, _, err := resource.Build(meta, []byte(map[resource.Kind]string{resource.KindMesh: `{}`, resource.KindHTTPRoute: `{"parentRefs": [{"name": "g"}]}`}[kind]))
		require.NoError(t, err)
		return r
	}
	view := policy.NewSnapshot(
		put(resource.KindMesh, "", "m", ""),
		put(resource.KindHTTPRoute, "m", "cart.shop", "shop"), put(resource.KindHTTPRoute, "m", "web.v1", ""), put(resource.KindHTTPRoute, "other", "api.shop", "shop"),
	)
	document := []byte(`{"policies": ["cart.shop", "web.v1", "api.shop"]}`)
	require.Equal(t, answer.Names{"cart.shop": "shop/cart"}, answer.Shown(view, "m", document, nil))
	require.Equal(t, answer.Names{"cart.shop": "shop/cart", "api.shop": "shop/api"}, func() answer.Names {
		return answer.Shown(policy.NewSnapshot(put(resource.KindMesh, "", "m", ""), put(resource.KindMesh, "", "other", ""),
			put(resource.KindHTTPRoute, "m", "cart.shop", "shop"), put(resource.KindHTTPRoute, "other", "api.shop", "shop")), "", document, nil)
	}(), "of every mesh")
	require.Empty(t, answer.Shown(view, "m", []byte(`{"reason": "beats ours.cart.shop and HTTPRoute/cart.shop"}`), nil))
	require.Empty(t, answer.Shown(view, "m", document, func(resource.Key) bool { return false }), "what may not be read is not told")

	a := &answer.DataplaneAnswer{
		Dataplane: "cart.shop",
		Warnings:  []string{"cart.shop, web.v1 and cart.shop: “cart.shop” is behind cart.shop."},
		Effective: []answer.Effective{{
			Attachment: policy.Attachment{Service: "cart.shop", Tags: resource.Tags{"app": "cart.shop"}, Route: "cart.shop"},
			Conf:       policy.Tree{"backend": "cart.shop"},
			Fields:     map[policy.Pointer]string{"/a": "cart.shop"},
			Policies:   []string{"cart.shop"},
			Considered: []answer.Considered{{Policy: "cart.shop", Reason: "loses to cart.shop: equally specific"}},
		}},
	}
	answer.Names{"cart.shop": "shop/cart"}.Apply(a)
	require.Equal(t, &answer.DataplaneAnswer{
		Dataplane: "shop/cart",
		Warnings:  []string{"shop/cart, web.v1 and shop/cart: “shop/cart” is behind shop/cart."},
		Effective: []answer.Effective{{
			Attachment: policy.Attachment{Service: "cart.shop", Tags: resource.Tags{"app": "cart.shop"}, Route: "shop/cart"},
			Conf:       policy.Tree{"backend": "cart.shop"},
			Fields:     map[policy.Pointer]string{"/a": "shop/cart"},
			Policies:   []string{"shop/cart"},
			Considered: []answer.Considered{{Policy: "shop/cart", Reason: "loses to shop/cart: equally specific"}},
		}},
	}, a)
}
